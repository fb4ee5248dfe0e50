package sink_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

func text(s string) stream.Value   { return stream.Value{Kind: stream.Text, Data: []byte(s)} }
func number(s string) stream.Value { return stream.Value{Kind: stream.Number, Data: []byte(s)} }
func raw(s string) stream.Value    { return stream.Value{Kind: stream.Bytes, Data: []byte(s)} }
func doc(s string) stream.Value    { return stream.Value{Kind: stream.JSON, Data: []byte(s)} }
func boolean(s string) stream.Value {
	return stream.Value{Kind: stream.Bool, Data: []byte(s)}
}
func stamp(s string) stream.Value { return stream.Value{Kind: stream.Time, Data: []byte(s)} }

var missing, null = stream.Value{}, stream.Value{Kind: stream.Null}

// batchOf makes a batch of one partition with a row of values a record.
func batchOf(rows ...[]stream.Value) *stream.Batch {
	b := &stream.Batch{Width: len(rows[0])}
	for i, row := range rows {
		b.Records = append(b.Records, stream.Record{Topic: "t", Offset: int64(i)})
		b.Values = append(b.Values, row...)
	}
	return b
}

// all are the indices of a batch without those of the faults.
func all(b *stream.Batch, faults []stream.Fault) []int {
	bad := make(map[int]bool, len(faults))
	for _, f := range faults {
		bad[f.Index] = true
	}
	var picks []int
	for i := range b.Records {
		if !bad[i] {
			picks = append(picks, i)
		}
	}
	return picks
}

// mapped configures a table of the test's schema, column i from value i.
func mapped(db *pgtest.DB, table string, columns ...string) sink.TableConfig {
	cfg := sink.TableConfig{Schema: db.User, Name: table, Mode: sink.Insert}
	for i, name := range columns {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: name, Source: i, SourceName: fmt.Sprintf("field%d", i)})
	}
	return cfg
}

func open(tb testing.TB, conn *pgx.Conn, cfg sink.TableConfig) *sink.Table {
	tb.Helper()
	table, err := sink.OpenTable(tb.Context(), conn, cfg)
	if err != nil {
		tb.Fatal(err)
	}
	return table
}

// apply runs each list of picks as an Apply of its own, in one transaction.
func apply(ctx context.Context, conn *pgx.Conn, s sink.Sink, b *stream.Batch, picks ...[]int) error {
	tx, err := pgtx.Begin(ctx, conn, pgtx.DefaultSettings)
	if err != nil {
		return err
	}
	for _, p := range picks {
		faults, err := s.Apply(ctx, tx, b, p)
		if err == nil && len(faults) > 0 {
			err = &faults[0]
		}
		if err != nil {
			tx.Rollback(ctx)
			return err
		}
	}
	return tx.Commit(ctx)
}

// write encodes a batch and applies all of it that has no fault.
func write(tb testing.TB, conn *pgx.Conn, s sink.Sink, b *stream.Batch) []stream.Fault {
	tb.Helper()
	faults := s.Encode(b, 0)
	if err := apply(tb.Context(), conn, s, b, all(b, faults)); err != nil {
		tb.Fatal(err)
	}
	return faults
}

// texts reads a query of one text column as the owner.
func texts(tb testing.TB, db *pgtest.DB, sql string) []string {
	tb.Helper()
	r, err := db.Owner.Query(tb.Context(), sql)
	if err != nil {
		tb.Fatal(err)
	}
	out, err := pgx.CollectRows(r, pgx.RowTo[string])
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

// secure gives a table row security that lets everything pass: COPY into it is
// refused, so its rows come in arrays.
func secure(tb testing.TB, db *pgtest.DB, table string) {
	tb.Helper()
	name := pgx.Identifier{db.User, table}.Sanitize()
	db.Exec(tb, "ALTER TABLE "+name+" ENABLE ROW LEVEL SECURITY")
	db.Exec(tb, "CREATE POLICY everything ON "+name+" USING (true) WITH CHECK (true)")
}
