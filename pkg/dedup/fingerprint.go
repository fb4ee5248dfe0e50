package dedup

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"strconv"

	"effectonce/pkg/stream"
)

// Fingerprint stands for a business key: the first 16 bytes of
// SHA-256(salt ‖ domain ‖ parts). See Hasher for the encoding.
type Fingerprint [16]byte

// Compare orders fingerprints as their bytes, the order of a run.
func (f Fingerprint) Compare(g Fingerprint) int { return bytes.Compare(f[:], g[:]) }

// Identity is both halves of a record's identity. The position covers the
// coordinates: it is the exact set of all offsets below it. The log covers the
// business key by its fingerprint. A repeat of either half has no effect.
type Identity struct {
	Partition   stream.Partition
	Offset      int64
	Fingerprint Fingerprint
}

const (
	domainKey         = 1 // business key
	domainCoordinates = 2 // topic id (16 bytes), partition (int32), offset (int64), big-endian
)

// The type byte of a part.
const (
	partNull   = 0
	partText   = 1
	partBytes  = 2
	partNumber = 3
	partBool   = 4
)

// Errors of Key. Each becomes a dead letter's reason.
var (
	ErrMissing = errors.New("missing_key") // a part is not there
	ErrNull    = errors.New("null_key")    // every part is null
	ErrKind    = errors.New("bad_key")     // a part is an object or an array
	ErrNumber  = errors.New("bad_number")  // the exponent is beyond 18 digits
)

// Hasher computes fingerprints under one pipeline's salt. The encoding is fixed
// byte by byte: a part is a type byte (0 null, 1 text, 2 bytes, 3 number, 4
// boolean), a big-endian uint32 length, and the bytes. Text is UTF-8 as it came,
// not normalised. A number is "-" if negative, its digits without leading and
// trailing zeros, "e", and the decimal exponent of the last digit: 1, 1.0 and 1e0
// are one key ("1e0"), the text "1" is another. Zero is "0e0". A boolean is
// "true" or "false". Not safe for concurrent use.
type Hasher struct {
	buf  []byte
	salt int // length of the salt in buf
}

// NewHasher returns a hasher under the salt.
func NewHasher(salt [16]byte) *Hasher {
	return &Hasher{buf: append(make([]byte, 0, 256), salt[:]...), salt: len(salt)}
}

// Key is the fingerprint of a business key of one or more parts.
func (h *Hasher) Key(parts ...stream.Value) (Fingerprint, error) {
	b := append(h.buf[:h.salt], domainKey)
	nulls := 0
	for _, p := range parts {
		var kind byte
		switch p.Kind {
		case stream.Missing:
			return Fingerprint{}, ErrMissing
		case stream.JSON:
			return Fingerprint{}, ErrKind
		case stream.Null:
			kind = partNull
			nulls++
		case stream.Text, stream.Time:
			kind = partText
		case stream.Bytes:
			kind = partBytes
		case stream.Number:
			kind = partNumber
		case stream.Bool:
			kind = partBool
		}
		at := len(b) + 1
		b = append(b, kind, 0, 0, 0, 0)
		if kind == partNumber {
			var ok bool
			if b, ok = appendNumber(b, p.Data); !ok {
				return Fingerprint{}, ErrNumber
			}
		} else {
			b = append(b, p.Data...)
		}
		binary.BigEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	}
	if nulls == len(parts) {
		return Fingerprint{}, ErrNull
	}
	return h.sum(b), nil
}

// Coordinates is the fingerprint of a record without a business key.
func (h *Hasher) Coordinates(p stream.Partition, offset int64) Fingerprint {
	b := append(h.buf[:h.salt], domainCoordinates)
	b = append(b, p.Topic[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(p.Number))
	return h.sum(binary.BigEndian.AppendUint64(b, uint64(offset)))
}

func (h *Hasher) sum(b []byte) Fingerprint {
	h.buf = b // keeps what it grew to
	s := sha256.Sum256(b)
	return Fingerprint(s[:16])
}

// appendNumber appends the canonical form of a JSON number. It never expands an
// exponent; one that does not fit 18 digits is refused.
func appendNumber(b, lit []byte) ([]byte, bool) {
	neg := false
	if len(lit) > 0 && lit[0] == '-' {
		neg, lit = true, lit[1:]
	}
	exp := int64(0)
	if i := bytes.IndexAny(lit, "eE"); i >= 0 {
		var err error
		if exp, err = strconv.ParseInt(string(lit[i+1:]), 10, 64); err != nil || exp > 1e18 || exp < -1e18 {
			return b, false
		}
		lit = lit[:i]
	}
	start := len(b)
	if neg {
		b = append(b, '-')
	}
	digits := len(b)
	for i, c := range lit {
		switch {
		case c == '.':
			exp -= int64(len(lit) - i - 1)
		case c != '0' || len(b) > digits:
			b = append(b, c)
		}
	}
	for len(b) > digits && b[len(b)-1] == '0' {
		b = b[:len(b)-1]
		exp++
	}
	if len(b) == digits {
		return append(b[:start], "0e0"...), true
	}
	return strconv.AppendInt(append(b, 'e'), exp, 10), true
}
