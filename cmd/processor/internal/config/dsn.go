package config

import "fmt"

// DSN is a Postgres connection string whose password is never printed: every
// way of turning it into text shows it with Mask in the password's place.
type DSN struct {
	value Secret
}

// NewDSN wraps a connection string.
func NewDSN(value string) DSN { return DSN{value: NewSecret(value)} }

// Reveal returns the connection string as it is, for the driver alone.
func (d DSN) Reveal() string { return d.value.Reveal() }

// IsZero reports whether none was given.
func (d DSN) IsZero() bool { return d.value.IsZero() }

// String returns the connection string without its secrets.
func (d DSN) String() string { return redactConnString(d.Reveal()) }

// GoString keeps %#v from showing the password.
func (d DSN) GoString() string { return d.String() }

// Format keeps every other verb from showing the password.
func (d DSN) Format(f fmt.State, _ rune) { _, _ = fmt.Fprint(f, d.String()) }

// MarshalText writes the redacted form, to JSON and YAML alike.
func (d DSN) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText takes the value as it is.
func (d *DSN) UnmarshalText(text []byte) error {
	*d = NewDSN(string(text))
	return nil
}
