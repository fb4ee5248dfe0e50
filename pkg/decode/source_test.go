package decode_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/decode"
)

func field(path ...string) decode.Source { return decode.Source{From: decode.Field, Path: path} }

func TestParseSource(t *testing.T) {
	for _, c := range []struct {
		in   string
		want decode.Source
		back string // when String spells it otherwise
	}{
		{in: "id", want: field("id")},
		{in: "order.id", want: field("order", "id")},
		{in: "order.lines.first name", want: field("order", "lines", "first name")},
		{in: "a/b.c", want: field("a/b", "c")},
		{in: "_id.$oid", want: field("_id", "$oid")},
		{in: "größe.日本", want: field("größe", "日本")},
		{in: `back\slash`, want: field(`back\slash`)},
		{in: "/a.b/c", want: field("a.b", "c")},
		{in: "/order/id", want: field("order", "id"), back: "order.id"},
		{in: "/", want: field("")},
		{in: "/a/", want: field("a", "")},
		{in: "/~0~1/x", want: field("~/", "x"), back: "~/.x"},
		{in: "/~01", want: field("~1"), back: "~1"},
		{in: "/header:a", want: field("header:a")},
		{in: "/kafka:key", want: field("kafka:key")},
		{in: "/items[0]", want: field("items[0]")},
		{in: "/ padded ", want: field(" padded ")},
		{in: "//a", want: field("", "a")},
		{in: "header:source", want: decode.Source{From: decode.Header, Name: "source"}},
		{in: "header:a.b:c/d", want: decode.Source{From: decode.Header, Name: "a.b:c/d"}},
		{in: "header: x", want: decode.Source{From: decode.Header, Name: " x"}},
		{in: "kafka:key", want: decode.Source{From: decode.Key}},
		{in: "kafka:topic", want: decode.Source{From: decode.Topic}},
		{in: "kafka:partition", want: decode.Source{From: decode.Partition}},
		{in: "kafka:offset", want: decode.Source{From: decode.Offset}},
		{in: "kafka:timestamp", want: decode.Source{From: decode.Timestamp}},
		{in: "kafka:value", want: decode.Source{From: decode.Document}},
	} {
		got, err := decode.ParseSource(c.in)
		if err != nil {
			t.Errorf("%q: %v", c.in, err)
			continue
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", c.in, diff)
		}
		back := c.in
		if c.back != "" {
			back = c.back
		}
		if got.String() != back {
			t.Errorf("%q is spelled %q, want %q", c.in, got.String(), back)
		}
	}
}

// Every message says what, where, and what to write instead.
func TestParseSourceRefuses(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"", "write a field path such as order.id"},
		{"header:", "write header:NAME"},
		{"kafka:headers", "write one of kafka:key, kafka:topic, kafka:partition, kafka:offset, kafka:timestamp, kafka:value"},
		{"kafka:", "is not known"},
		{"Header:id", "colon at character 7: only header: and kafka: take one; for a member of that name write /Header:id"},
		{"items[0].id", `has '[' at character 6: elements of arrays cannot be selected; for a member of that name write /items[0]/id`},
		{"a\nb", `has '\n' at character 2`},
		{"a..b", "empty name as part 2: remove the extra dot; for a name with dots write /a..b"},
		{".a", "empty name as part 1"},
		{"a.", "empty name as part 2"},
		{" a", "begins or ends with a space: remove it, or write / a"},
		{"/a~2", "write ~0 for ~ and ~1 for /"},
		{"/a~", "write ~0 for ~ and ~1 for /"},
		{"a\xff", "is not UTF-8"},
		{"header:\xff", "is not UTF-8"},
	} {
		_, err := decode.ParseSource(c.in)
		if err == nil {
			t.Errorf("%q passed", c.in)
			continue
		}
		if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q, want it to say %q", c.in, err, c.want)
		}
		if c.in != "" && !strings.Contains(err.Error(), "source ") {
			t.Errorf("%q: %q does not name the source", c.in, err)
		}
	}
}

// FuzzParseSource: what parses is spelled so that it parses to the same again,
// also when the names of a path are arbitrary.
func FuzzParseSource(f *testing.F) {
	for _, s := range []string{"a.b", "/a.b/c", "header:x", "kafka:key", "/", "//", "/~01~10", "a:b", " a", "a[0]", "/header:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := decode.ParseSource(s)
		if err != nil {
			return
		}
		back, err := decode.ParseSource(got.String())
		if err != nil {
			t.Fatalf("%q is spelled %q, which does not parse: %v", s, got, err)
		}
		if diff := cmp.Diff(got, back); diff != "" {
			t.Fatalf("%q is spelled %q (-want +got):\n%s", s, got, diff)
		}
	})
}

func TestNewNamesEveryFault(t *testing.T) {
	deep := field(strings.Split(strings.Repeat("a", 5), "")...)
	_, err := decode.New([]decode.Source{
		field("fine"),
		{From: decode.Field},
		{From: decode.Header},
		{From: 200},
		deep,
	}, decode.Limits{Bytes: -1, Depth: 4, Members: -2})
	if err == nil {
		t.Fatal("it compiled")
	}
	for _, want := range []string{
		"limit of -1 bytes", "limit of -2 members",
		"source 2 (): it has no path", "source 3 (header:): it names no header", "source 4 (source 200): it comes from nowhere",
		"source 5 (a.a.a.a.a): 5 levels are more than the depth limit of 4",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("missing %q in:\n%v", want, err)
		}
	}
	if strings.Contains(err.Error(), "source 1") {
		t.Errorf("a good source is named in:\n%v", err)
	}
	for _, depth := range []int{-1, 10_001} {
		if _, err := decode.New(nil, decode.Limits{Depth: depth}); err == nil {
			t.Errorf("a depth of %d compiled", depth)
		}
	}
}
