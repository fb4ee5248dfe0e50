package decode_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/decode"
	"effectonce/pkg/stream"
)

// small limits let the tests go past them with short documents.
var small = decode.Limits{Bytes: 4096, Depth: 4, Members: 5}

// nul is a document that is null, which no string can say.
const nul = "\x00null"

// refused are documents under the limits of small, with the fault of each. They
// are also the seeds of the fuzz test.
var refused = []struct {
	name, doc, reason, detail string
}{
	{"tombstone", nul, "tombstone", "no document"},

	{"empty", "", "not_json", "the document is empty"},
	{"white space", " \n", "not_json", "the document is empty"},
	{"text", "secret", "not_json", "at byte 0"},
	{"a byte order mark", "\ufeff{}", "not_json", "at byte 0"},
	{"cut off", `{"id":"secret`, "not_json", `ends too early, at byte 13, in "/id"`},
	{"cut off in a name", `{"secret`, "not_json", "ends too early, at byte 8"},
	{"cut off after a colon", `{"id":`, "not_json", `ends too early, at byte 6, in "/id"`},
	{"cut off in a literal", `{"id":tru`, "not_json", `ends too early, at byte 9, in "/id"`},
	{"cut off in a character", `{"id":"` + "\xe6\x97", "not_json", "ends too early"},
	{"not closed", `{"id":1`, "not_json", "ends too early, at byte 7"},
	{"trailing comma", `{"id":1,}`, "not_json", "at byte 7"},
	{"trailing comma in an array", `{"id":[1,]}`, "not_json", `in "/id`},
	{"no comma", `{"id":1 "b":2}`, "not_json", "at byte 8"},
	{"no colon", `{"id" 1}`, "not_json", "at byte 6"},
	{"no quotes", `{id:1}`, "not_json", "at byte 1"},
	{"single quotes", `{'id':1}`, "not_json", "at byte 1"},
	{"name is a number", `{1:1}`, "not_json", "not JSON, at byte 1"},
	{"name is an object", `{{}:1}`, "not_json", "not JSON, at byte 1"},
	{"brackets crossed", `{"id":[1}`, "not_json", `in "/id`},
	{"closed twice", `{"id":1}}`, "not_json", "more after the end of the document, at byte 8"},
	{"a second document", `{"id":1}{"id":2}`, "not_json", "more after the end of the document, at byte 8"},
	{"a NUL behind it", "{\"id\":1}\n\x00", "not_json", "more after the end of the document, at byte 9"},
	{"a comment", `{"id":1 /* secret */}`, "not_json", "at byte 8"},
	{"NaN", `{"id":NaN}`, "not_json", `at byte 6, in "/id"`},
	{"infinity", `{"id":-Infinity}`, "not_json", `in "/id"`},
	{"leading zero", `{"id":007}`, "not_json", "at byte 7"},
	{"plus", `{"id":+1}`, "not_json", `at byte 6, in "/id"`},
	{"bare point", `{"id":.5}`, "not_json", `at byte 6, in "/id"`},
	{"no digit behind the point", `{"id":5.}`, "not_json", `in "/id"`},
	{"hexadecimal", `{"id":0x1F}`, "not_json", "at byte 7"},
	{"control character", "{\"id\":\"a\nb\"}", "not_json", `at byte 8, in "/id"`},
	{"unknown escape", `{"id":"\x41"}`, "not_json", `at byte 7, in "/id"`},
	{"half an escape", `{"id":"\u12G4"}`, "not_json", `at byte 7, in "/id"`},

	{"broken behind the last source", `{"id":1,"z":{"y":[1,2,}}}`, "not_json", `in "/z/y`},
	{"broken inside a member nobody reads", `{"z":{"y":tru},"id":1}`, "not_json", `in "/z/y"`},

	{"bytes that are no UTF-8", "{\"id\":\"a\xffb\"}", "bad_utf8", `at byte 8, in "/id"`},
	{"Latin-1", "{\"z\":\"Sch\xf6n\",\"id\":1}", "bad_utf8", `at byte 9, in "/z"`},
	{"a name that is no UTF-8", "{\"a\xff\":1}", "bad_utf8", "at byte 3"},
	{"UTF-16", "\xff\xfe{\x00}\x00", "bad_utf8", "at byte 0"},
	{"an encoded surrogate", "{\"id\":\"\xed\xa0\x80\"}", "bad_utf8", `in "/id"`},
	{"an overlong slash", "{\"id\":\"\xc0\xaf\"}", "bad_utf8", `in "/id"`},
	{"high surrogate alone", `{"id":"\ud83d"}`, "bad_utf8", `at byte 7, in "/id"`},
	{"high surrogate before text", `{"id":"\ud83dxxxxxx"}`, "bad_utf8", `at byte 7, in "/id"`},
	{"low surrogate alone", `{"id":"\ude00 and more"}`, "bad_utf8", `at byte 7, in "/id"`},
	{"surrogates the wrong way round", `{"id":"\ude00\ud83d"}`, "bad_utf8", `at byte 7, in "/id"`},
	{"high surrogate twice", `{"id":"\ud83d\ud83d"}`, "bad_utf8", `at byte 7, in "/id"`},
	{"lone surrogate in a name", `{"\uDEAD":1}`, "bad_utf8", "at byte 2"},

	{"repeated name", `{"id":1,"id":1}`, "duplicate_name", `at byte 8, in "/id"`},
	{"repeated name, spelled otherwise", `{"id":1,"\u0069d":2}`, "duplicate_name", `in "/id"`},
	{"repeated name that nobody reads", `{"id":1,"z":2,"z":3}`, "duplicate_name", `in "/z"`},
	{"repeated name inside", `{"z":{"y":[{"x":1,"x":2}]},"id":1}`, "duplicate_name", `in "/z/y/0/x"`},
	{"repeated name on the way", `{"order":{"id":1},"order":{"id":2}}`, "duplicate_name", `in "/order"`},
	{"repeated empty name", `{"":1,"":2}`, "duplicate_name", `in "/"`},

	{"array", `[{"id":1}]`, "not_object", "is an array, not an object"},
	{"string", ` "secret" `, "not_object", "is a string, not"},
	{"an object in a string", `"{\"id\":1}"`, "not_object", "is a string, not"},
	{"number", `17`, "not_object", "is a number, not"},
	{"null", `null`, "not_object", "is null, not"},
	{"boolean", `true`, "not_object", "is a boolean, not"},
	{"array that is not JSON", `[1,`, "not_json", "ends too early"},
	{"numbers one after another", `1 2`, "not_json", "more after the end of the document, at byte 2"},

	{"five levels", `{"z":{"y":{"x":{"w":{}}}}}`, "too_deep", `more than 4 objects and arrays inside one another, at byte 19, in "/z/y/x/w"`},
	{"five levels of arrays", `{"z":[[[[]]]]}`, "too_deep", `at byte 8, in "/z/0/0"`},
	{"five levels on a path", `{"order":{"at":{"x":{"w":[]}}}}`, "too_deep", `in "/order/at/x/w"`},
	{"five levels without an object", `[[[[[]]]]]`, "too_deep", `at byte 4, in "/0/0/0"`},
	{"levels without end", `{"z":` + strings.Repeat("[", 4000), "too_deep", `at byte 8, in "/z/0/0"`},

	{"six members", `{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}`, "too_many_members", "an object with more than 5 members"},
	{"six members inside", `{"z":{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}}`, "too_many_members", `in "/z`},
	{"six members in an array", `{"z":[{"":1,"b":2,"c":3,"d":4,"e":5,"f":6}]}`, "too_many_members", `in "/z/0`},

	{"4,097 bytes", `{"id":1,"z":"` + strings.Repeat("x", 4097-15) + `"}`, "too_large", "4097 bytes, the limit is 4096"},
	{"too large and not JSON", strings.Repeat("x", 5000), "too_large", "5000 bytes"},
}

// accepted stand just inside the limits of small.
var accepted = []string{
	`{"z":{"y":{"x":{}}}}`,
	`{"z":[[[]]],"id":[[],[],[],[],[],[],[]]}`,
	`{"z":"[[[[[{{{{{","id":"{{{{{"}`,
	`{"a":1,"b":2,"c":3,"d":4,"e":5}`,
	`{"z":[1,2,3,4,5,6,7,8,9,10]}`,
	`{"z":{"a":{"a":1,"b":2,"c":3,"d":4,"e":5},"b":{"a":1,"b":2,"c":3,"d":4,"e":5}}}`,
	`{"id":1,"z":"` + strings.Repeat("x", 4096-15) + `"}`,
}

func faulty(doc string) *stream.Record {
	r := record(doc)
	if doc == nul {
		r.Value = nil
	}
	return r
}

// Each refused record stands between two good ones, on one decoder: the fault is
// its own, names its place, gives no payload away, leaves no half of the document
// behind, and what comes after is decoded as if it had not been there.
func TestFaultsBetweenGoodRecords(t *testing.T) {
	sources := []string{"id", "order.id", "order", "kafka:value", "kafka:offset", "header:source"}
	d := plan(t, small, sources...).NewDecoder()
	good := func(when string) {
		t.Helper()
		dst := make([]stream.Value, len(sources))
		if err := d.Decode(record(`{"id":"\u0061","order":{"id":2}}`), dst); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		want := []stream.Value{text("a"), number("2"), nested(`{"id":2}`), nested(`{"id":"\u0061","order":{"id":2}}`), number("123456789"), binary("shop")}
		if diff := cmp.Diff(want, dst); diff != "" {
			t.Fatalf("%s (-want +got):\n%s", when, diff)
		}
	}
	good("first")
	for _, c := range refused {
		t.Run(c.name, func(t *testing.T) {
			dst := make([]stream.Value, len(sources))
			expectFault(t, d.Decode(faulty(c.doc), dst), c.reason, c.detail)
			want := []stream.Value{missing, missing, missing, missing, number("123456789"), binary("shop")}
			if diff := cmp.Diff(want, dst); diff != "" {
				t.Errorf("values of a refused record (-want +got):\n%s", diff)
			}
			good("after it")
		})
	}
}

// The verdict on a document does not depend on which of its members are read:
// otherwise a new column would turn records into dead letters.
func TestVerdictDoesNotDependOnTheSources(t *testing.T) {
	for _, sources := range [][]string{
		{"id"}, {"kafka:value"}, {"z"}, {"z.y"}, {"z.y.x", "z.y"}, {"order.at.x"}, {"gone"}, {"a", "b", "c", "d", "e", "f", "g", "h", "i"},
	} {
		d := plan(t, small, sources...).NewDecoder()
		dst := make([]stream.Value, len(sources))
		for _, c := range refused {
			expectFault(t, d.Decode(faulty(c.doc), dst), c.reason, "")
		}
		for _, doc := range accepted {
			if err := d.Decode(record(doc), dst); err != nil {
				t.Errorf("%v, %.60s: %v", sources, doc, err)
			}
		}
	}
}

// The defaults are the documented ones, to the byte.
func TestDefaultLimits(t *testing.T) {
	object := func(members int) string {
		var b strings.Builder
		for i := range members {
			b.WriteString(`,"`)
			b.WriteString(strings.Repeat("m", 1+i/1000))
			b.WriteString(string(rune('0'+i/100%10)) + string(rune('0'+i/10%10)) + string(rune('0'+i%10)))
			b.WriteString(`":0`)
		}
		return "{" + b.String()[1:] + "}"
	}
	nest := func(depth int) string {
		return strings.Repeat(`{"a":`, depth-1) + "{}" + strings.Repeat("}", depth-1)
	}
	sized := func(n int) string { return `{"a":"` + strings.Repeat("x", n-8) + `"}` }
	d := plan(t, decode.Limits{}, "id").NewDecoder()
	for _, c := range []struct{ name, fits, over, reason string }{
		{"members", object(10_000), object(10_001), "too_many_members"},
		{"depth", nest(128), nest(129), "too_deep"},
		{"bytes", sized(16 << 20), sized(16<<20 + 1), "too_large"},
	} {
		if err := d.Decode(record(c.fits), make([]stream.Value, 1)); err != nil {
			t.Errorf("%s at the limit: %v", c.name, err)
		}
		expectFault(t, d.Decode(record(c.over), make([]stream.Value, 1)), c.reason, "")
	}
}

// A depth limit at the token reader's own must not be passed on to it: its error
// would be "not JSON".
func TestDeepestLimit(t *testing.T) {
	d := plan(t, decode.Limits{Depth: 10_000}, "id").NewDecoder()
	for depth, reason := range map[int]string{10_000: "", 10_001: "too_deep", 50_000: "too_deep"} {
		doc := `{"a":` + strings.Repeat("[", depth-1) + strings.Repeat("]", depth-1) + "}"
		err := d.Decode(record(doc), make([]stream.Value, 1))
		if reason == "" && err != nil {
			t.Errorf("%d levels: %v", depth, err)
		}
		if reason != "" {
			expectFault(t, err, reason, "more than 10000 objects and arrays")
		}
	}
}

// The detail is stored in a text column and logged: a producer's member name must
// not bring in a NUL, a line of its own, a terminal sequence, or a megabyte.
func TestDetailIsSafeToStoreAndLog(t *testing.T) {
	d := plan(t, decode.Limits{}, "id").NewDecoder()
	for _, name := range []string{
		`\u0000`, `a\nlevel=info msg=fine`, `\u001b[31mred`, `\"quoted\"`, `\\`, `~/`,
		"\u202e", strings.Repeat("x", 1<<20), strings.Repeat("日", 1000), strings.Repeat(`\u0000`, 1000),
	} {
		for _, doc := range []string{`{"` + name + `":tru}`, `{"` + name + `":1,"` + name + `":1}`, `{"` + name + `":{"\ud800":1}}`} {
			err := d.Decode(record(doc), make([]stream.Value, 1))
			if err == nil {
				t.Fatalf("%.80q passed", doc)
			}
			detail := err.Error()
			if len(detail) > 1024 || !utf8.ValidString(detail) || strings.ContainsFunc(detail, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\u202e' }) || strings.Contains(detail, `\xe6`) {
				t.Errorf("%.80q: detail %.2000q", doc, detail)
			}
		}
	}
}
