package sink

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"effectonce/pkg/stream"
)

// Mode says what a Table does with a record.
type Mode string

// The modes of a Table.
const (
	// Insert adds a row a record. A violated constraint is the record's fault.
	Insert Mode = "insert"
	// Upsert adds the row or, where the conflict columns meet one, sets its other
	// mapped columns. Of several records with one key in a batch the last counts.
	Upsert Mode = "upsert"
)

// TableConfig maps decoded values to the columns of one table.
type TableConfig struct {
	Schema   string // exact, case included; no search path is ever asked
	Name     string
	Mode     Mode
	Conflict []string // upsert: the columns of one unique index
	Columns  []Column // in the order they are written; columns not named here keep their defaults
}

// Column is one mapped column.
type Column struct {
	Name       string // exact, case included
	Source     int    // index in stream.Batch.Row
	SourceName string // as configured, for messages
}

// postgresColumns is the most columns a table can have.
const postgresColumns = 1600

// Validate returns all faults that can be named without a database, joined.
func (c *TableConfig) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }

	for what, name := range map[string]string{"schema": c.Schema, "table": c.Name} {
		if reason := badName(name); reason != "" {
			fault("%s %q: %s", what, name, reason)
		}
	}
	if len(c.Columns) == 0 || len(c.Columns) > postgresColumns {
		fault("%d columns are mapped, 1 to %d can be", len(c.Columns), postgresColumns)
	}
	seen := make(map[string]bool, len(c.Columns))
	for _, col := range c.Columns {
		if reason := badName(col.Name); reason != "" {
			fault("column %q: %s", col.Name, reason)
		}
		if seen[col.Name] {
			fault("column %q is mapped twice", col.Name)
		}
		if col.Source < 0 {
			fault("column %q has no source", col.Name)
		}
		seen[col.Name] = true
	}
	faults = append(faults, c.validateMode(seen)...)
	slices.SortStableFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}

func (c *TableConfig) validateMode(mapped map[string]bool) []error {
	switch {
	case c.Mode != Insert && c.Mode != Upsert:
		return []error{fmt.Errorf("mode %q is not one of %s, %s", c.Mode, Insert, Upsert)}
	case c.Mode == Insert && len(c.Conflict) > 0:
		return []error{fmt.Errorf("conflict columns belong to mode %s, the mode is %s", Upsert, Insert)}
	case c.Mode == Upsert && len(c.Conflict) == 0:
		return []error{fmt.Errorf("mode %s needs the conflict columns", Upsert)}
	}
	var faults []error
	for i, name := range c.Conflict {
		if !mapped[name] {
			faults = append(faults, fmt.Errorf("conflict column %q is not mapped%s", name, didYouMean(name, c.columnNames())))
		}
		if slices.Contains(c.Conflict[:i], name) {
			faults = append(faults, fmt.Errorf("conflict column %q is named twice", name))
		}
	}
	return faults
}

func (c *TableConfig) columnNames() []string {
	names := make([]string, len(c.Columns))
	for i, col := range c.Columns {
		names[i] = col.Name
	}
	return names
}

func badName(name string) string {
	switch {
	case name == "":
		return "a name is empty"
	case !utf8.ValidString(name):
		return "a name is not UTF-8"
	case strings.ContainsRune(name, 0):
		return "a name holds U+0000"
	}
	return ""
}

// quote is the one way from a configured name into SQL.
func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

// describe names a column and where its value comes from, never the value.
func (c *Column) describe() string {
	if c.SourceName == "" {
		return fmt.Sprintf("column %q", c.Name)
	}
	return fmt.Sprintf("column %q (from %s)", c.Name, c.SourceName)
}

func encodeFault(index int, reason, detail string) stream.Fault {
	return stream.Fault{Index: index, Stage: stream.StageEncode, Reason: reason, Detail: detail}
}
