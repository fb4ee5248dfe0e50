package cli

import (
	"io"

	"github.com/spf13/cobra"
)

// Group is a verb that only holds others.
func Group(use, short string) *cobra.Command { return group(use, short) }

// Output is the -o flag of a verb that prints data.
type Output struct{ o *output }

// BindOutput adds -o to a verb.
func BindOutput(cmd *cobra.Command) Output { return Output{bindOutput(cmd)} }

// JSON reports whether JSON was asked for.
func (o Output) JSON(cmd *cobra.Command) (bool, error) { return o.o.json(cmd) }

// WriteJSON prints one object, alone on the output.
func WriteJSON(w io.Writer, v any) error { return writeJSON(w, v) }

// WriteTable prints rows in columns; the first row is the heading.
func WriteTable(w io.Writer, rows [][]string) error { return writeTable(w, rows) }
