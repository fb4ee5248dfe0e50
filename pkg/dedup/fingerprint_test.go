package dedup

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/stream"
)

// vector is one case of testdata/fingerprints.txt.
type vector struct {
	name      string
	parts     []stream.Value // of a key
	partition stream.Partition
	offset    int64
	coords    bool
	hashed    []byte
	result    string
}

func vectors(t *testing.T) []vector {
	t.Helper()
	text, err := os.ReadFile("testdata/fingerprints.txt")
	if err != nil {
		t.Fatal(err)
	}
	var out []vector
	for block := range strings.SplitSeq(string(text), "\n\n") {
		if strings.HasPrefix(block, "#") {
			continue
		}
		out = append(out, parseVector(t, block))
	}
	if len(out) < 45 {
		t.Fatalf("%d vectors: the file was cut short", len(out))
	}
	return out
}

func parseVector(t *testing.T, block string) vector {
	t.Helper()
	var v vector
	for line := range strings.Lines(block) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.TrimSpace(value)
		switch field {
		case "name":
			v.name = value
		case "key":
			for part := range strings.SplitSeq(value, " | ") {
				v.parts = append(v.parts, parsePart(t, part))
			}
		case "coords":
			v.coords = true
			var topic string
			if _, err := fmt.Sscan(value, &topic, &v.partition.Number, &v.offset); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			copy(v.partition.Topic[:], unhex(t, topic))
		case "hashed":
			v.hashed = unhex(t, strings.ReplaceAll(value, " ", ""))
		case "result":
			v.result = value
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	return v
}

func parsePart(t *testing.T, part string) stream.Value {
	t.Helper()
	kind, quoted, _ := strings.Cut(part, " ")
	if kind == "null" {
		return stream.Value{Kind: stream.Null}
	}
	data, err := strconv.Unquote(quoted)
	if err != nil {
		t.Fatalf("part %s: %v", part, err)
	}
	kinds := map[string]stream.Kind{
		"text": stream.Text, "bytes": stream.Bytes, "number": stream.Number, "bool": stream.Bool, "time": stream.Time,
	}
	return stream.Value{Kind: kinds[kind], Data: []byte(data)}
}

func unhex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestVectors pins the encoding: what is stored under these fingerprints outlives
// this program, so no byte of it may change.
func TestVectors(t *testing.T) {
	t.Parallel()
	hashers := map[[16]byte]*Hasher{} // one a salt, used again and again as a committer does
	for _, v := range vectors(t) {
		salt := [16]byte(v.hashed)
		h := hashers[salt]
		if h == nil {
			h = NewHasher(salt)
			hashers[salt] = h
		}
		got := h.Coordinates(v.partition, v.offset)
		if !v.coords {
			var err error
			if got, err = h.Key(v.parts...); err != nil {
				t.Errorf("%s: %v", v.name, err)
				continue
			}
		}
		if diff := cmp.Diff(hex.EncodeToString(v.hashed), hex.EncodeToString(h.buf)); diff != "" {
			t.Errorf("%s: hashed (-want +got):\n%s", v.name, diff)
		}
		if hex.EncodeToString(got[:]) != v.result {
			t.Errorf("%s: %x, want %s", v.name, got, v.result)
		}
		if sum := sha256.Sum256(v.hashed); hex.EncodeToString(sum[:16]) != v.result {
			t.Errorf("%s: the file contradicts itself", v.name)
		}
	}
}

// TestVectorsDiffer: two keys have one fingerprint only as spellings of one number.
func TestVectorsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]vector{}
	shared := 0
	for _, v := range vectors(t) {
		other, ok := seen[v.result]
		if ok && !sameNumber(v, other) {
			t.Errorf("%q and %q have one fingerprint", v.name, other.name)
		}
		if ok {
			shared++
		}
		seen[v.result] = v
	}
	if shared != 10 { // six spellings of 1, four of 0, two each of 100 and −0.0015: 14 − 4
		t.Errorf("%d spellings share a fingerprint", shared)
	}
}

func sameNumber(a, b vector) bool {
	if len(a.parts) != 1 || len(b.parts) != 1 || a.parts[0].Kind != stream.Number || b.parts[0].Kind != stream.Number {
		return false
	}
	return value(string(a.parts[0].Data)).Cmp(value(string(b.parts[0].Data))) == 0
}

// value is the exact number of a literal whose exponent is small.
func value(lit string) *big.Rat {
	r, ok := new(big.Rat).SetString(lit)
	if !ok {
		panic("not a number: " + lit)
	}
	return r
}

func TestKeyRefuses(t *testing.T) {
	t.Parallel()
	text, null := stream.Value{Kind: stream.Text, Data: []byte("a")}, stream.Value{Kind: stream.Null}
	number := func(lit string) stream.Value { return stream.Value{Kind: stream.Number, Data: []byte(lit)} }
	for _, c := range []struct {
		name  string
		parts []stream.Value
		want  error
	}{
		{"missing", []stream.Value{{}}, ErrMissing},
		{"a missing part", []stream.Value{text, {}}, ErrMissing},
		{"null", []stream.Value{null}, ErrNull},
		{"all parts null", []stream.Value{null, null}, ErrNull},
		{"no parts", nil, ErrNull},
		{"one part of two null", []stream.Value{null, text}, nil},
		{"null and missing", []stream.Value{null, {}}, ErrMissing},
		{"an object", []stream.Value{text, {Kind: stream.JSON, Data: []byte("{}")}}, ErrKind},
		{"an exponent of 19 digits", []stream.Value{number("1e1000000000000000001")}, ErrNumber},
		{"a negative one", []stream.Value{number("1e-1000000000000000001")}, ErrNumber},
		{"an exponent beyond 64 bits", []stream.Value{number("1e99999999999999999999")}, ErrNumber},
		{"an exponent of 18 digits", []stream.Value{number("1.5e-999999999999999999")}, nil},
	} {
		h := NewHasher([16]byte{1})
		before, err := h.Key(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Key(c.parts...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if after, err := h.Key(text); err != nil || after != before {
			t.Errorf("%s: the hasher is another one afterwards: %v", c.name, err)
		}
	}
}

func TestCompareIsByteOrder(t *testing.T) {
	t.Parallel()
	low, high := Fingerprint{0: 1, 15: 255}, Fingerprint{0: 2}
	if low.Compare(high) >= 0 || high.Compare(low) <= 0 || low.Compare(low) != 0 {
		t.Error("not the order of the bytes")
	}
	if a, b := slotOf(low), slotOf(high); !a.less(b) || b.less(a) || a.less(a) {
		t.Error("slots are ordered otherwise")
	}
	if a, b := slotOf(Fingerprint{15: 1}), slotOf(Fingerprint{15: 2}); !a.less(b) || b.less(a) {
		t.Error("the second word does not count")
	}
}

// FuzzNumber: the canonical form names the value, and only the value.
func FuzzNumber(f *testing.F) {
	for _, s := range []string{"1", "1.0", "10e-1", "0.1e+1", "-0", "0.00", "1E2", "100", "1e400", "-1.50e-3", "0.0015", "1e-20", "105", "1.05"} {
		f.Add(s, "1")
		f.Add(s, s)
	}
	f.Add("1e0", "0.001e3")
	f.Add("-5", "5")
	f.Fuzz(func(t *testing.T, a, b string) {
		ca, cb := canonical(t, a), canonical(t, b)
		if ca == "" || cb == "" {
			return
		}
		if va, vb := value(a), value(b); (va.Cmp(vb) == 0) != (ca == cb) {
			t.Errorf("%s is %s, %s is %s", a, ca, b, cb)
		}
		if value(ca).Cmp(value(a)) != 0 {
			t.Errorf("%s became %s", a, ca)
		}
		if again := canonical(t, ca); again != ca {
			t.Errorf("%s became %s, then %s", a, ca, again)
		}
	})
}

// canonical is empty for what is no JSON number, or too large for math/big to
// compare in a moment.
func canonical(t *testing.T, lit string) string {
	t.Helper()
	if !jsonNumber(lit) {
		return ""
	}
	if i := strings.IndexAny(lit, "eE"); i >= 0 && len(strings.TrimLeft(lit[i+1:], "+-0")) > 3 {
		return ""
	}
	b, ok := appendNumber([]byte("prefix"), []byte(lit))
	if !ok || !strings.HasPrefix(string(b), "prefix") {
		t.Fatalf("%s: %q, %v", lit, b, ok)
	}
	return string(b[len("prefix"):])
}

// jsonNumber follows the grammar of RFC 8259.
func jsonNumber(s string) bool {
	s = strings.TrimPrefix(s, "-")
	digits := func() int {
		n := len(s) - len(strings.TrimLeft(s, "0123456789"))
		s = s[n:]
		return n
	}
	zero := strings.HasPrefix(s, "0")
	if n := digits(); n == 0 || zero && n > 1 {
		return false
	}
	if rest, ok := strings.CutPrefix(s, "."); ok {
		if s = rest; digits() == 0 {
			return false
		}
	}
	if len(s) > 0 && (s[0] == 'e' || s[0] == 'E') {
		if s = s[1:]; len(s) > 0 && (s[0] == '+' || s[0] == '-') {
			s = s[1:]
		}
		if digits() == 0 {
			return false
		}
	}
	return s == ""
}
