package config

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is one thing wrong with a setting.
type Fault struct {
	Path    string // the setting, such as kafka.brokers; empty for the file as a whole
	Origin  Origin // where its value was written
	Message string
	Excerpt string // the line of the file with a caret below, secrets masked; may be empty
}

// String is the one line of the fault, without its excerpt.
func (f Fault) String() string {
	line := f.Message
	if f.Path != "" {
		line = f.Path + ": " + line
	}
	if where := f.Origin.String(); where != "" {
		line = where + ": " + line
	}
	return line
}

// Faults is every fault of a configuration, in the order of the file. It is
// the error of Load; the process should exit with the code for configuration.
type Faults []Fault

// Error lists all faults with their excerpts.
func (fs Faults) Error() string {
	var b strings.Builder
	for i, f := range fs {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.String())
		if f.Excerpt != "" {
			b.WriteString("\n" + f.Excerpt)
		}
	}
	return b.String()
}

// sort puts the faults in the order a reader meets them: the file from top to
// bottom, then the environment, --set and flags.
func (fs Faults) sort() {
	slices.SortStableFunc(fs, func(a, b Fault) int {
		if c := a.Origin.Kind.rank() - b.Origin.Kind.rank(); c != 0 {
			return c
		}
		if c := a.Origin.Line - b.Origin.Line; c != 0 {
			return c
		}
		if c := a.Origin.Column - b.Origin.Column; c != 0 {
			return c
		}
		return strings.Compare(a.Path, b.Path)
	})
}

// Kind says which layer a value came from.
type Kind string

// The layers, from the weakest to the strongest.
const (
	FromDefault Kind = "default"
	FromFile    Kind = "file"
	FromEnv     Kind = "env"
	FromSet     Kind = "set"
	FromFlag    Kind = "flag"
)

func (k Kind) rank() int {
	return slices.Index([]Kind{FromDefault, FromFile, FromEnv, FromSet, FromFlag}, k)
}

// Origin is where a value was written.
type Origin struct {
	Kind   Kind
	Name   string // the file, the variable or the flag
	Line   int    // from 1, in a file only
	Column int    // from 1, in characters, in a file only
	Secret bool   // part of the value came from ${file:…}, so it is never shown
}

// String writes file:line:col, or the name of the variable or flag.
func (o Origin) String() string {
	switch {
	case o.Kind == FromFile && o.Line > 0:
		return fmt.Sprintf("%s:%d:%d", o.Name, o.Line, o.Column)
	case o.Kind == FromDefault:
		return string(FromDefault)
	}
	return o.Name
}
