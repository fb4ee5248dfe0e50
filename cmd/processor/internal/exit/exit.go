// Package exit carries what a verb found out to the one place that decides the
// exit code. A verb wraps its error by what the caller of the program should
// do about it; main asks Code.
package exit

import (
	"errors"

	"effectonce/cmd/processor/internal/config"
)

// The codes, as a script sees them.
const (
	OK          = 0
	Failed      = 1  // something went wrong: read the message
	UsageError  = 2  // the command line was not understood
	Refused     = 3  // a check said no
	Unavailable = 69 // the broker or the database did not answer: try again later
	Config      = 78 // the configuration or the schema must be changed first
)

type coded struct {
	error

	code int
}

func (e *coded) Unwrap() error { return e.error }

// With gives an error the code it ends the program with. The outermost code
// of a chain counts. A nil error stays nil.
func With(code int, err error) error {
	if err == nil {
		return nil
	}
	return &coded{err, code}
}

// Code is the exit code for what a verb returned.
func Code(err error) int {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[*coded](err); ok {
		return c.code
	}
	if _, ok := errors.AsType[config.Faults](err); ok {
		return Config
	}
	return Failed
}
