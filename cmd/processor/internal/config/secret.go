package config

import (
	"fmt"
)

// Mask is what stands wherever a secret would.
const Mask = "***"

// Secret is a value that is never printed. Every way of turning it into text
// (fmt in all verbs, JSON, YAML, encoding.TextMarshaler) gives Mask; only
// Reveal gives the value, for the one call that needs it.
type Secret struct {
	value *string // behind a pointer, since %w and %p print fields without asking Format
}

// NewSecret wraps a value.
func NewSecret(value string) Secret { return Secret{value: &value} }

// Reveal returns the value itself. Do not print or wrap what it returns.
func (s Secret) Reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

// IsZero reports whether no secret was given.
func (s Secret) IsZero() bool { return s.Reveal() == "" }

// String returns Mask, or nothing for an empty secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return Mask
}

// GoString keeps %#v from showing the value.
func (s Secret) GoString() string { return s.String() }

// Format keeps every other verb (%x, %d, %q, …) from showing the value.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, s.String()) }

// MarshalText gives Mask to JSON and YAML alike.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText takes the value as it is.
func (s *Secret) UnmarshalText(text []byte) error {
	*s = NewSecret(string(text))
	return nil
}
