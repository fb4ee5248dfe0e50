package decode_test

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/decode"
	"effectonce/pkg/stream"
)

func text(s string) stream.Value   { return stream.Value{Kind: stream.Text, Data: []byte(s)} }
func number(s string) stream.Value { return stream.Value{Kind: stream.Number, Data: []byte(s)} }
func boolean(s string) stream.Value {
	return stream.Value{Kind: stream.Bool, Data: []byte(s)}
}
func nested(s string) stream.Value { return stream.Value{Kind: stream.JSON, Data: []byte(s)} }
func binary(s string) stream.Value { return stream.Value{Kind: stream.Bytes, Data: []byte(s)} }

var (
	missing = stream.Value{}
	null    = stream.Value{Kind: stream.Null}
)

// values decodes one record that must be good.
func values(t *testing.T, r *stream.Record, sources ...string) []stream.Value {
	t.Helper()
	dst := make([]stream.Value, len(sources))
	if err := plan(t, decode.Limits{}, sources...).NewDecoder().Decode(r, dst); err != nil {
		t.Fatalf("%q: %v", r.Value, err)
	}
	return dst
}

func TestPaths(t *testing.T) {
	for _, c := range []struct {
		name, doc string
		sources   []string
		want      []stream.Value
	}{
		{"kinds", `{"t":"x","n":1.50,"y":true,"f":false,"z":null,"o":{"a":1},"l":[1, 2]}`,
			[]string{"t", "n", "y", "f", "z", "o", "l", "gone"},
			[]stream.Value{text("x"), number("1.50"), boolean("true"), boolean("false"), null, nested(`{"a":1}`), nested(`[1, 2]`), missing}},
		{"a member whole and descended into", `{"order":{"id":7,"at":{"day":"mon"}}}`,
			[]string{"order", "order.id", "order.at", "order.at.day", "kafka:value"},
			[]stream.Value{nested(`{"id":7,"at":{"day":"mon"}}`), number("7"), nested(`{"day":"mon"}`), text("mon"), nested(`{"order":{"id":7,"at":{"day":"mon"}}}`)}},
		{"a member whole and descended into, but it is no object", `{"order":7}`,
			[]string{"order", "order.id"}, []stream.Value{number("7"), missing}},
		{"one source twice", `{"id":7}`, []string{"id", "id"}, []stream.Value{number("7"), number("7")}},
		{"missing is not null", `{"a":{"x":null},"b":null,"c":5,"d":[{"x":1}]}`,
			[]string{"a.x", "a.y", "b.x", "c.x", "d.x", "d.0", "e.x"},
			[]stream.Value{null, missing, missing, missing, missing, missing, missing}},
		{"the order of members does not matter", `{"b":{"y":1},"a":{"x":2}}`, []string{"a.x", "b.y"}, []stream.Value{number("2"), number("1")}},
		{"names are not folded", `{"ID":1,"Id":2}`, []string{"id", "Id"}, []stream.Value{missing, number("2")}},
		{"a name with escapes", `{"\u0069\u0064":1,"a\/b":2,"a\nb":3,"\"":4}`, []string{"id", "a/b", `a\nb`, `"`},
			[]stream.Value{number("1"), number("2"), missing, number("4")}},
		{"names with dots, and empty ones", `{"a.b":{"":1},"":{"x":2},"a":{"b":3}}`, []string{"/a.b/", "//x", "a.b"},
			[]stream.Value{number("1"), number("2"), number("3")}},
		{"white space is no part of a value", "\n {\t\"a\" : { \"b\" : 1 } , \"c\" : \"x\" }\r\n", []string{"a", "a.b", "c", "kafka:value"},
			[]stream.Value{nested(`{ "b" : 1 }`), number("1"), text("x"), nested("{\t\"a\" : { \"b\" : 1 } , \"c\" : \"x\" }")}},
		{"an empty object", `{}`, []string{"a", "kafka:value"}, []stream.Value{missing, nested(`{}`)}},
		{"more branches than are compared one by one", `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6,"g":7,"h":8,"i":9,"j":{"k":10},"z":0}`,
			strings.Split("a b c d e f g h i j.k y", " "),
			[]stream.Value{number("1"), number("2"), number("3"), number("4"), number("5"), number("6"), number("7"), number("8"), number("9"), number("10"), missing}},
		{"a path through an object inside an array is none", `{"a":[{"b":1}],"c":{"a":{"b":2}}}`, []string{"a.b", "c.a.b"}, []stream.Value{missing, number("2")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, values(t, record(c.doc), c.sources...)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.doc, diff)
			}
		})
	}
}

// A number that passed through a float anywhere would make two ids one and drop
// the second record as a repeat of the first.
func TestNumbersSurviveDigitByDigit(t *testing.T) {
	for _, n := range []string{
		"0", "-0", "-0.0", "0e0", "1", "1.0", "1e0", "1E+5", "1e-5", "0.1", "1.10",
		"9007199254740992", "9007199254740993", "9223372036854775807", "9223372036854775808",
		"18446744073709551615", "327267367867168100000", "1e400", "-1e-400", "1e999999999999",
		strings.Repeat("9", 4000) + "." + strings.Repeat("0", 4000),
	} {
		doc := `{"n":` + n + `,"a":{"n":` + n + `},"l":[` + n + `]}`
		want := []stream.Value{number(n), number(n), nested("[" + n + "]")}
		if diff := cmp.Diff(want, values(t, record(doc), "n", "a.n", "l")); diff != "" {
			t.Errorf("%.40s (-want +got):\n%s", n, diff)
		}
	}
}

func TestText(t *testing.T) {
	for in, want := range map[string]string{
		`""`:                         "",
		`"plain"`:                    "plain",
		`"<&>"`:                      "<&>",
		`"größe 日本"`:                 "größe 日本",
		`"\u0000"`:                   "\x00", // kept: whether a column can hold it is the sink's question
		`"a\u0000b"`:                 "a\x00b",
		`"\ud83d\ude00"`:             "😀",
		`"\uD83D\uDE00!"`:            "😀!",
		`"😀"`:                        "😀",
		`"\"\\\/\b\f\n\r\t"`:         "\"\\/\b\f\n\r\t",
		`"\ufffd"`:                   "\ufffd",
		`"` + "\ufffd\u2028" + `"`:   "\ufffd\u2028",
		`"` + "\x7f" + `"`:           "\x7f",
		`"not normalised: e\u0301é"`: "not normalised: e\u0301é",
	} {
		if diff := cmp.Diff([]stream.Value{text(want)}, values(t, record(`{"s":`+in+`}`), "s")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
	}
}

// B40: of a repeated header the last; a name without a value is null, an empty
// value is not, and neither is missing.
func TestHeaders(t *testing.T) {
	r := record(`{}`)
	r.Headers = []stream.Header{
		{Key: "a", Value: []byte("1")},
		{Key: "b", Value: nil},
		{Key: "\xff", Value: []byte("name in no encoding")},
		{Key: "c", Value: []byte{}},
		{Key: "a", Value: []byte("2\xff\x00")},
		{Key: "d", Value: []byte("was set")},
		{Key: "d", Value: nil},
		{Key: "e", Value: nil},
		{Key: "e", Value: []byte("set at last")},
		{Key: "", Value: []byte("no name")},
	}
	got := values(t, r, "header:a", "header:b", "header:c", "header:d", "header:e", "header:f", "header:A")
	want := []stream.Value{binary("2\xff\x00"), null, binary(""), null, binary("set at last"), missing, missing}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	r.Headers = nil
	if got := values(t, r, "header:a")[0]; got.Kind != stream.Missing {
		t.Errorf("a header of a record without headers is %s", got.Kind)
	}
}

func TestBesideTheDocument(t *testing.T) {
	zone := time.FixedZone("", 2*3600)
	stamp := func(s string) stream.Value { return stream.Value{Kind: stream.Time, Data: []byte(s)} }
	for _, c := range []struct {
		name   string
		change func(*stream.Record)
		source string
		want   stream.Value
	}{
		{"key", func(r *stream.Record) { r.Key = []byte("k\xff") }, "kafka:key", binary("k\xff")},
		{"null key", func(r *stream.Record) { r.Key = nil }, "kafka:key", null},
		{"empty key", func(r *stream.Record) { r.Key = []byte{} }, "kafka:key", binary("")},
		{"topic", func(r *stream.Record) { r.Topic = "a.b-c_D" }, "kafka:topic", text("a.b-c_D")},
		{"partition", func(r *stream.Record) { r.Partition.Number = math.MaxInt32 }, "kafka:partition", number("2147483647")},
		{"offset", func(r *stream.Record) { r.Offset = math.MaxInt64 }, "kafka:offset", number("9223372036854775807")},
		{"timestamp in any zone", func(r *stream.Record) { r.Timestamp = time.Date(2024, 3, 31, 2, 30, 0, 7, zone) }, "kafka:timestamp", stamp("2024-03-31T00:30:00.000000007Z")},
		{"timestamp at the epoch", func(r *stream.Record) { r.Timestamp = time.UnixMilli(0).In(zone) }, "kafka:timestamp", stamp("1970-01-01T00:00:00Z")},
		{"timestamp at the last moment", func(r *stream.Record) { r.Timestamp = time.UnixMilli(253402300799999) }, "kafka:timestamp", stamp("9999-12-31T23:59:59.999Z")},
		{"no timestamp, as the protocol says it", func(r *stream.Record) { r.Timestamp = time.UnixMilli(-1) }, "kafka:timestamp", null},
		{"no timestamp", func(r *stream.Record) { r.Timestamp = time.Time{} }, "kafka:timestamp", null},
	} {
		t.Run(c.name, func(t *testing.T) {
			// None of these needs the document, so none looks at it.
			for _, doc := range [][]byte{nil, {}, []byte("\xff{"), []byte("{}")} {
				r := record("")
				r.Value = doc
				c.change(r)
				if diff := cmp.Diff([]stream.Value{c.want}, values(t, r, c.source)); diff != "" {
					t.Errorf("document %q (-want +got):\n%s", doc, diff)
				}
			}
		})
	}
}

func TestTimestampThatHasNoText(t *testing.T) {
	d := plan(t, decode.Limits{}, "kafka:offset", "kafka:timestamp", "id", "kafka:key").NewDecoder()
	for _, ms := range []int64{253402300800000, math.MaxInt64, math.MinInt64} {
		r := record(`{"id":1}`)
		r.Timestamp = time.UnixMilli(ms)
		dst := make([]stream.Value, 4)
		expectFault(t, d.Decode(r, dst), "bad_timestamp", "not between the years 0 and 9999")
		if diff := cmp.Diff([]stream.Value{number("123456789"), missing, missing, binary("ord-00001234567")}, dst); diff != "" {
			t.Errorf("%d (-want +got):\n%s", ms, diff)
		}
	}
}

// expectFault wants a fault of that reason whose detail says the given words.
func expectFault(t *testing.T, err error, reason, detail string) {
	t.Helper()
	fault, ok := errors.AsType[*stream.Fault](err)
	if !ok {
		t.Fatalf("got %v, want a fault %s", err, reason)
	}
	if fault.Reason != reason || fault.Stage != stream.StageDecode || fault.Code != "" || fault.Detail == "" {
		t.Fatalf("got %+v, want stage decode, reason %s and a detail", fault, reason)
	}
	if !strings.Contains(fault.Detail, detail) {
		t.Errorf("detail %q, want it to say %q", fault.Detail, detail)
	}
	if strings.Contains(fault.Detail, "secret") {
		t.Errorf("detail %q gives payload away", fault.Detail)
	}
}

func TestDecodersOfOnePlanAreIndependent(t *testing.T) {
	p := plan(t, decode.Limits{}, "order.id", "customer.name", "kafka:offset")
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			d, dst := p.NewDecoder(), make([]stream.Value, 3)
			for range 200 {
				d.Reset()
				if err := d.Decode(record(wide), dst); err != nil {
					t.Error(err)
				} else if string(dst[1].Data) != "Schön" {
					t.Errorf("got %q", dst[1].Data)
				}
			}
		})
	}
	wg.Wait()
}

func TestWrongWidthIsTheCallersMistake(t *testing.T) {
	defer func() {
		if got := recover(); got != "decode: 1 values for 2 sources" {
			t.Errorf("recovered %v", got)
		}
	}()
	_ = plan(t, decode.Limits{}, "a", "b").NewDecoder().Decode(record(`{}`), make([]stream.Value, 1))
}
