//go:build !mutant

// Package mutant switches safeguards off, one at a time, in binaries built with
// the tag mutant: a test that stays green then is no test. In every other build
// the switches are constants and the compiler removes them.
package mutant

// The safeguards that can be switched off.
const (
	NoFence         = false // the position moves whoever owns it and wherever it stands
	LearnEarly      = false // memory learns the keys of a batch before its COMMIT is answered
	LearnBlind      = false // memory follows others' runs to the log's head, and learns none of their keys
	IgnoreOvertaken = false // a key that another member applied since the check is applied again
)
