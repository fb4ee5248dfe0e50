package sink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Table writes mapped columns into one table. It is safe for concurrent use.
type Table struct {
	config TableConfig
	shape  atomic.Pointer[shape]
}

// shape is one picture of the table, immutable.
type shape struct {
	layout    uint64 // counts the pictures, from 1
	columns   []column
	copySQL   string // empty where COPY is refused or means something else
	insertSQL string
	warnings  []string
}

// OpenTable reads the table from the catalog. The error lists all faults of the
// mapping, joined under ErrTable; any other error is the connection's.
func OpenTable(ctx context.Context, conn *pgx.Conn, config TableConfig) (*Table, error) {
	t := &Table{config: config}
	if err := t.Reload(ctx, conn); err != nil {
		return nil, err
	}
	return t, nil
}

// Reload reads the table again, once after the server named a column, type or
// table unknown. On an error the old picture stays. Batches encoded for it are
// encoded anew when they are applied.
func (t *Table) Reload(ctx context.Context, conn *pgx.Conn) error {
	if err := t.config.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrTable, err)
	}
	c, err := readCatalog(ctx, conn, t.config.Schema, t.config.Name)
	if err != nil {
		return err
	}
	columns, faults := c.check(&t.config)
	if len(faults) > 0 {
		return fmt.Errorf("%w: %w", ErrTable, errors.Join(faults...))
	}
	s := &shape{layout: 1, columns: columns, insertSQL: t.config.insertSQL(), warnings: c.warnings(&t.config)}
	if t.config.Mode == Insert && !c.relation.rowSecurity && !c.relation.rules && c.relation.kind != "v" {
		s.copySQL = t.config.copySQL()
	}
	if err := s.explain(ctx, conn); err != nil {
		return err
	}
	for {
		old := t.shape.Load()
		if old != nil {
			s.layout = old.layout + 1
		}
		if t.shape.CompareAndSwap(old, s) {
			return nil
		}
	}
}

// explain has the server plan the statement without running it: it knows more
// about views, rules and rights than the catalog's columns say.
func (s *shape) explain(ctx context.Context, conn *pgx.Conn) error {
	err := pgtx.Once(ctx, conn, pgtx.DefaultSettings, pgtx.Statement{Step: pgtx.StepEffect,
		SQL: "EXPLAIN " + s.insertSQL, Params: s.arrays(nil)})
	if err == nil {
		return nil
	}
	// Syntax and access, a feature that is not there, an object that is not in the
	// state for it; everything else passes with time.
	if code := pgtx.Code(err); strings.HasPrefix(code, "42") || strings.HasPrefix(code, "0A") || code == "55000" {
		return fmt.Errorf("%w: the server refuses its statement: %w", ErrTable, err)
	}
	return fmt.Errorf("explain statement: %w", err)
}

// Tables names the tables the sink writes to, quoted.
func (t *Table) Tables() []string { return []string{t.config.table()} }

// Warnings lists what works otherwise than one might think. keySources are the
// sources of the business key, as indexes in stream.Batch.Row.
func (t *Table) Warnings(keySources []int) []string {
	warnings := slices.Clone(t.shape.Load().warnings)
	if t.config.Mode != Upsert {
		return warnings
	}
	var table []int
	for _, c := range t.config.Columns {
		if slices.Contains(t.config.Conflict, c.Name) {
			table = append(table, c.Source)
		}
	}
	slices.Sort(table)
	if slices.Equal(slices.Compact(table), slices.Compact(slices.Sorted(slices.Values(keySources)))) {
		warnings = append(warnings, fmt.Sprintf("the conflict columns of %s are the business key: only the first record "+
			"of each key is applied, so the upsert never updates", t.config.table()))
	}
	return warnings
}

func (c *catalog) warnings(cfg *TableConfig) []string {
	var warnings []string
	if c.relation.unlogged {
		warnings = append(warnings, cfg.table()+" is unlogged: after a crash of the server it is empty, and its records "+
			"are not applied again")
	}
	for _, name := range cfg.Conflict {
		if !c.attribute(name).deterministic {
			warnings = append(warnings, fmt.Sprintf("conflict column %q has a nondeterministic collation: two forms of one "+
				"key in a batch are applied one by one, slowly", name))
		}
	}
	return warnings
}

// Encode implements Sink.
func (t *Table) Encode(b *stream.Batch, from int) []stream.Fault {
	s := t.shape.Load()
	if b.Layout != s.layout {
		b.Ends = b.Ends[:0] // all rows are of one layout
	}
	b.Ends = b.Ends[:min(from, len(b.Ends))]
	start := 0
	if n := len(b.Ends); n > 0 {
		start = b.Ends[n-1]
	}
	b.Encoded, b.Layout = b.Encoded[:start], s.layout

	var faults []stream.Fault
	for i := len(b.Ends); i < len(b.Records); i++ {
		if len(b.Skip) > 0 && b.Skip[i] {
			b.Ends = append(b.Ends, start)
			continue
		}
		row, col, reason := s.appendRow(b.Encoded, b.Row(i))
		if reason != "" {
			row = row[:start]
			if i >= from { // an earlier one has been told
				faults = append(faults, s.fault(b, i, col, reason))
			}
		}
		start = len(row)
		b.Encoded, b.Ends = row, append(b.Ends, start)
	}
	return faults
}

func (s *shape) fault(b *stream.Batch, i int, c *column, reason string) stream.Fault {
	return encodeFault(i, reason, c.describe()+" "+sentence(reason, b.Row(i)[c.Source].Kind))
}

// Apply implements Sink. A fault comes only for a record that Encode refused, or
// that the table, changed since, cannot hold.
func (t *Table) Apply(ctx context.Context, tx *pgtx.Tx, b *stream.Batch, picks []int) ([]stream.Fault, error) {
	if len(picks) == 0 {
		return nil, nil
	}
	s := t.shape.Load()
	for b.Layout != s.layout || len(b.Ends) != len(b.Records) {
		t.Encode(b, len(b.Records)) // with the newest layout
		s = t.shape.Load()
	}
	if faults := s.refused(b, picks); len(faults) > 0 {
		return faults, nil
	}
	if t.config.Mode == Upsert {
		return nil, tx.Run(ctx, pgtx.Statement{Step: pgtx.StepEffect, SQL: s.insertSQL, Params: s.arrays(s.latest(b, picks))})
	}
	if s.copySQL != "" {
		_, err := tx.Copy(ctx, s.copySQL, newCopyReader(b, picks))
		return nil, err
	}
	rows := make([][]byte, len(picks))
	for i, pick := range picks {
		rows[i] = b.Bytes(pick)
	}
	return nil, tx.Run(ctx, pgtx.Statement{Step: pgtx.StepEffect, SQL: s.insertSQL, Params: s.arrays(rows)})
}

// refused names the picks without a row.
func (s *shape) refused(b *stream.Batch, picks []int) []stream.Fault {
	var faults []stream.Fault
	for _, i := range picks {
		if len(b.Bytes(i)) == 0 {
			_, col, reason := s.appendRow(nil, b.Row(i))
			faults = append(faults, s.fault(b, i, col, reason))
		}
	}
	return faults
}
