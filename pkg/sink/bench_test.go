package sink

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// benchTable is the orders table of the comparison with other programs.
const benchTable = "order_id text, customer text, amount bigint, currency text, status text, ts bigint"

func benchBatch(n int) *stream.Batch {
	b := &stream.Batch{Width: 6}
	text := func(s string) stream.Value { return stream.Value{Kind: stream.Text, Data: []byte(s)} }
	number := func(s string) stream.Value { return stream.Value{Kind: stream.Number, Data: []byte(s)} }
	for i := range n {
		b.Records = append(b.Records, stream.Record{Offset: int64(i)})
		b.Values = append(b.Values, text(fmt.Sprintf("order-%09d", i)), text(fmt.Sprintf("customer-%05d", i%50000)),
			number(fmt.Sprint(i*7919%100000)), text("EUR"), text("paid"), number(fmt.Sprint(1700000000000+i)))
	}
	return b
}

func benchOpen(b *testing.B) (*Table, *pgx.Conn) {
	b.Helper()
	db := pgtest.New(b)
	db.Table(b, "orders", benchTable)
	cfg := TableConfig{Schema: db.User, Name: "orders", Mode: Insert}
	for i, name := range []string{"order_id", "customer", "amount", "currency", "status", "ts"} {
		cfg.Columns = append(cfg.Columns, Column{Name: name, Source: i})
	}
	conn := db.Conn(b)
	table, err := OpenTable(b.Context(), conn, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return table, conn
}

// BenchmarkEncode is per record of six columns.
func BenchmarkEncode(b *testing.B) {
	const n = 10_000
	table, _ := benchOpen(b)
	batch := benchBatch(n)
	table.Encode(batch, 0)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N/n + 1 {
		table.Encode(batch, 0)
	}
}

// BenchmarkTypes is per value.
func BenchmarkTypes(b *testing.B) {
	row := func(kind stream.Kind, s string) stream.Value { return stream.Value{Kind: kind, Data: []byte(s)} }
	for name, c := range map[string]struct {
		column column
		value  stream.Value
	}{
		"text":        {column{kind: kindText}, row(stream.Text, "customer-12345")},
		"int8":        {column{kind: kindInt8}, row(stream.Number, "1700000000000")},
		"numeric":     {column{kind: kindNumeric, scale: 2}, row(stream.Number, "12345.67")},
		"float8":      {column{kind: kindFloat8}, row(stream.Number, "12345.678")},
		"uuid":        {column{kind: kindUUID}, row(stream.Text, "00112233-4455-6677-8899-aabbccddeeff")},
		"timestamptz": {column{kind: kindTimestamptz}, row(stream.Text, "2024-01-02T03:04:05.678Z")},
		"jsonb":       {column{kind: kindJSONB}, row(stream.JSON, `{"a":"text","b":[1,2,3],"c":{"d":"\u00e9"}}`)},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var dst []byte
			for b.Loop() {
				var reason string
				if dst, reason = c.column.append(dst[:0], c.value); reason != "" {
					b.Fatal(reason)
				}
			}
		})
	}
}

// BenchmarkPath is per transaction with one effect: which way a number of rows
// should take; see the package comment.
func BenchmarkPath(b *testing.B) {
	for _, n := range []int{10, 50, 200, 1000, 10_000} {
		for _, path := range []string{"copy", "array"} {
			b.Run(fmt.Sprintf("%s/%d", path, n), func(b *testing.B) {
				table, conn := benchOpen(b)
				batch := benchBatch(n)
				table.Encode(batch, 0)
				picks := make([]int, n)
				for i := range picks {
					picks[i] = i
				}
				s := table.shape.Load()
				for b.Loop() {
					if err := effect(b, conn, s, batch, picks, path); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/float64(n), "µs/row")
			})
		}
	}
}

// effect runs one transaction and takes it back.
func effect(b *testing.B, conn *pgx.Conn, s *shape, batch *stream.Batch, picks []int, path string) error {
	b.Helper()
	ctx := b.Context()
	tx, err := pgtx.Begin(ctx, conn, pgtx.DefaultSettings)
	if err != nil {
		return err
	}
	if path == "copy" {
		_, err = tx.Copy(ctx, s.copySQL, newCopyReader(batch, picks))
	} else {
		rows := make([][]byte, len(picks))
		for i, pick := range picks {
			rows[i] = batch.Bytes(pick)
		}
		err = tx.Run(ctx, pgtx.Statement{Step: pgtx.StepEffect, SQL: s.insertSQL, Params: s.arrays(rows)})
	}
	tx.Rollback(ctx)
	return err
}
