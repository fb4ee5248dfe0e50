package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Output is the -o flag of a verb that prints data.
type Output struct {
	format string
}

// BindOutput adds -o to a verb.
func BindOutput(cmd *cobra.Command) *Output {
	o := &Output{}
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "`table` or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return o
}

// JSON reports whether JSON was asked for.
func (o *Output) JSON(cmd *cobra.Command) (bool, error) {
	switch o.format {
	case "table":
		return false, nil
	case "json":
		return true, nil
	}
	return false, usage(cmd, errors.New("-o wants table or json"))
}

// WriteJSON prints one object, alone on the output.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print json: %w", err)
	}
	return nil
}

// WriteTable prints rows in columns; the first row is the heading.
func WriteTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(t, strings.Join(row, "\t")); err != nil {
			return fmt.Errorf("print table: %w", err)
		}
	}
	return t.Flush()
}
