package config

import (
	"errors"
	"math"
	"strconv"
	"strings"
	"time"
)

// Duration is a time span written as Go writes it: 45s, 1m30s, 250ms.
type Duration time.Duration

// Std returns the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

// String writes the shortest form that reads back to the same span.
func (d Duration) String() string {
	s := time.Duration(d).String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// MarshalText writes what UnmarshalText reads.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a span; a bare number is refused, since its unit would be a guess.
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	if err != nil {
		return errors.New("wants a duration with a unit, such as 45s or 250ms")
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written 64MiB, 10MB or plainly 1024.
type Size int64

var errSize = errors.New("wants a size such as 64MiB, 512KiB, 10MB or a number of bytes")

// sizeUnits is in the order String tries them.
func sizeUnits() []struct {
	suffix string
	bytes  int64
} {
	return []struct {
		suffix string
		bytes  int64
	}{
		{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
		{"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1},
	}
}

// Bytes returns the number of bytes.
func (s Size) Bytes() int64 { return int64(s) }

// String writes the largest binary unit that divides the size.
func (s Size) String() string {
	for _, u := range sizeUnits()[:3] {
		if s != 0 && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10)
}

// MarshalText writes what UnmarshalText reads.
func (s Size) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads a size; units of 1024 carry an i, units of 1000 do not.
func (s *Size) UnmarshalText(text []byte) error {
	number, unit := strings.TrimSpace(string(text)), int64(1)
	for _, u := range sizeUnits() {
		if rest, ok := strings.CutSuffix(number, u.suffix); ok {
			number, unit = strings.TrimSpace(rest), u.bytes
			break
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 0 || n > math.MaxInt64/unit {
		return errSize
	}
	*s = Size(n * unit)
	return nil
}

// The words Start knows beside a time.
const (
	StartUnset     = ""
	StartEarliest  = "earliest"
	StartLatest    = "latest"
	StartCommitted = "committed"
	StartTime      = "time"
)

// Start says where the very first start of a pipeline begins. Mode is one of
// the Start… words; Time is set when Mode is StartTime.
type Start struct {
	Mode string
	Time time.Time
}

// IsZero reports that nothing was configured, which is not the same as
// earliest: it refuses a group that already has foreign offsets.
func (s Start) IsZero() bool { return s.Mode == StartUnset }

// String writes what UnmarshalText reads.
func (s Start) String() string {
	if s.Mode == StartTime {
		return s.Time.Format(time.RFC3339Nano)
	}
	return s.Mode
}

// MarshalText writes what UnmarshalText reads.
func (s Start) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads one of the words or an RFC 3339 time with its offset.
func (s *Start) UnmarshalText(text []byte) error {
	switch word := string(text); word {
	case StartEarliest, StartLatest, StartCommitted:
		*s = Start{Mode: word}
		return nil
	}
	at, err := time.Parse(time.RFC3339Nano, string(text))
	if err != nil {
		return errors.New("wants earliest, latest, committed or an RFC 3339 time such as 2026-01-31T00:00:00Z")
	}
	*s = Start{Mode: StartTime, Time: at}
	return nil
}

// Coordinates is the word that says there is no business key.
const Coordinates = "coordinates"

// Sources is the business key: the sources of its parts, in order. It is
// empty when records are recognised by their coordinates only.
type Sources []string

// String writes the sources, or the word for none.
func (s Sources) String() string {
	if len(s) == 0 {
		return Coordinates
	}
	return strings.Join(s, ", ")
}
