package decode_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"regexp"
	"testing"
	"unicode/utf8"

	"effectonce/pkg/decode"
	"effectonce/pkg/stream"
)

// FuzzDecode compares with encoding/json and a walk through maps: both say the
// same about every document, except where this package is strict and encoding/json
// is not, and there the reason must really be in the document.
func FuzzDecode(f *testing.F) {
	for _, c := range refused {
		f.Add([]byte(c.doc))
	}
	for _, doc := range accepted {
		f.Add([]byte(doc))
	}
	for _, doc := range []string{
		order, wide, `{}`, `{"id":null,"order":null}`, `{"order":{"id":-0}}`, `{"\u0069d":"\ud83d\ude00\u0000"}`,
		`{"id":18446744073709551615,"order":{"id":1e400,"at":{"x":9007199254740993}},"z":[0.10]}`,
		` { "order" : { "id" : "x" , "at" : [ ] } , "a.b" : 1 } `,
	} {
		f.Add([]byte(doc))
	}
	sources := []string{"id", "order", "order.id", "order.at.x", "z", "z.y", "/a.b", "kafka:value", "kafka:offset"}
	loose, strict := plan(f, decode.Limits{}, sources...), plan(f, small, sources...)
	paths := [][]string{{"id"}, {"order"}, {"order", "id"}, {"order", "at", "x"}, {"z"}, {"z", "y"}, {"a.b"}, nil}

	f.Fuzz(func(t *testing.T, doc []byte) {
		before := bytes.Clone(doc)
		r := record("")
		r.Value = doc
		limited := strict.NewDecoder().Decode(r, make([]stream.Value, len(sources)))
		d, got := loose.NewDecoder(), make([]stream.Value, len(sources))
		err := d.Decode(r, got)
		if !bytes.Equal(before, doc) {
			t.Fatalf("%q became %q", before, doc)
		}
		if err != nil {
			justify(t, doc, expectAnyFault(t, err))
			return
		}
		if !json.Valid(doc) {
			t.Fatalf("%q passed and is not JSON", doc)
		}
		if limited != nil {
			justify(t, doc, expectAnyFault(t, limited))
		}
		for i, path := range paths {
			same(t, doc, path, follow(t, doc, path), got[i])
			if got[i].Kind != stream.Text && len(got[i].Data) > 0 && !within(doc, got[i].Data) {
				t.Fatalf("%q: %v is a copy", doc, path)
			}
		}
		// A second record on the same decoder leaves the first one's values alone.
		kept := make([][]byte, len(got))
		for i := range got {
			kept[i] = bytes.Clone(got[i].Data)
		}
		if err := d.Decode(record(wide), make([]stream.Value, len(sources))); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if !bytes.Equal(kept[i], got[i].Data) {
				t.Fatalf("%q: value %d became %q", doc, i, got[i].Data)
			}
		}
	})
}

func expectAnyFault(t *testing.T, err error) *stream.Fault {
	t.Helper()
	fault, ok := errors.AsType[*stream.Fault](err)
	if !ok || fault.Stage != stream.StageDecode || fault.Detail == "" {
		t.Fatalf("got %#v, want a fault of decode", err)
	}
	return fault
}

var surrogate = regexp.MustCompile(`(?i)\\ud[89a-f]`)

// justify looks for the reason of a fault with other means.
func justify(t *testing.T, doc []byte, fault *stream.Fault) {
	t.Helper()
	depth, members, repeated := measure(doc)
	first := bytes.TrimLeft(doc, " \t\r\n")
	ok := false
	switch fault.Reason {
	case "tombstone":
		ok = doc == nil
	case "too_large":
		ok = len(doc) > small.Bytes
	case "not_json":
		ok = !json.Valid(doc)
	case "bad_utf8":
		ok = !utf8.Valid(doc) || surrogate.Match(doc)
	case "not_object":
		ok = json.Valid(doc) && first[0] != '{'
	case "duplicate_name":
		ok = repeated
	case "too_deep":
		ok = depth > small.Depth
	case "too_many_members":
		ok = members > small.Members
	}
	if !ok {
		t.Fatalf("%q: %v; measured depth %d, members %d, repeated %t", doc, fault, depth, members, repeated)
	}
}

// measure walks as far as encoding/json can: the greatest depth, the greatest
// number of members, and whether an object has a name twice.
func measure(doc []byte) (depth, members int, repeated bool) {
	type level struct {
		object bool
		even   bool
		names  map[string]bool
		count  int
	}
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber()
	var open []*level
	for {
		tok, err := dec.Token()
		if err != nil {
			return depth, members, repeated
		}
		if len(open) > 0 && open[len(open)-1].object {
			top := open[len(open)-1]
			if name, isName := tok.(string); !top.even && isName {
				repeated = repeated || top.names[name]
				top.names[name] = true
				top.count++
				members = max(members, top.count)
				top.even = true
				continue
			}
			top.even = false
		}
		switch tok {
		case json.Delim('{'), json.Delim('['):
			open = append(open, &level{object: tok == json.Delim('{'), names: map[string]bool{}})
			depth = max(depth, len(open))
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
	}
}

// follow finds the text of a member with nothing but maps; nil when it is missing.
func follow(t *testing.T, doc []byte, path []string) json.RawMessage {
	t.Helper()
	raw := json.RawMessage(bytes.Trim(doc, " \t\r\n"))
	for _, name := range path {
		if raw[0] != '{' {
			return nil
		}
		var members map[string]json.RawMessage
		if err := json.Unmarshal(raw, &members); err != nil {
			t.Fatalf("%q: %v", doc, err)
		}
		member, ok := members[name]
		if !ok {
			return nil
		}
		raw = member
	}
	return raw
}

func same(t *testing.T, doc []byte, path []string, want json.RawMessage, got stream.Value) {
	t.Helper()
	kind, data := stream.Missing, []byte(nil)
	if want != nil {
		switch want[0] {
		case '"':
			var s string
			if err := json.Unmarshal(want, &s); err != nil {
				t.Fatal(err)
			}
			kind, data = stream.Text, []byte(s)
		case '{', '[':
			kind, data = stream.JSON, want
		case 't', 'f':
			kind, data = stream.Bool, want
		case 'n':
			kind = stream.Null
		default:
			kind, data = stream.Number, want
		}
	}
	if got.Kind != kind || !bytes.Equal(got.Data, data) {
		t.Fatalf("%q: %v is %s %q, want %s %q", doc, path, got.Kind, got.Data, kind, data)
	}
}
