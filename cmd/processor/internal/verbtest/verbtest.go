// Package verbtest is for tests of verbs about a pipeline: one called orders, of the
// topic orders on a broker in process, into a table in real Postgres.
package verbtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/run"
	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/pkg/processor"
)

// World is where the pipeline is.
type World struct {
	*pgtest.DB
	Fake   *kfake.Cluster
	Broker string // Fake's, unless a test says otherwise
}

// New makes the topic, and no table yet.
func New(t *testing.T, partitions int32) *World {
	t.Helper()
	w := &World{DB: pgtest.New(t), Fake: kafkatest.Fake(t, partitions, "orders")}
	w.Broker = w.Fake.ListenAddrs()[0]
	return w
}

// Produce sends an order for each number in [from, to).
func (w *World) Produce(t *testing.T, from, to int) {
	t.Helper()
	var records []*kgo.Record
	for i := from; i < to; i++ {
		id := fmt.Sprintf("o%d", i)
		records = append(records, &kgo.Record{Topic: "orders", Key: []byte(id), Value: fmt.Appendf(nil, `{"order_id":%q}`, id)})
	}
	kafkatest.ProduceTo(t, w.Broker, records...)
}

// Apply makes the table, sends orders and runs the pipeline until they are applied.
func (w *World) Apply(t *testing.T, rule string, orders int) {
	t.Helper()
	w.Table(t, "orders", "order_id text")
	w.Produce(t, 0, orders)
	loaded, err := config.Load(config.Options{File: w.File(t, rule)})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := run.Pipeline(loaded.Config, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin = ""
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, cfg) }()
	for at := 0; at < orders; at = w.Positions(t) {
		if ctx.Err() != nil {
			t.Fatalf("at %d", at)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// Positions is the sum of them all, 0 while there is none.
func (w *World) Positions(t *testing.T) (n int) {
	t.Helper()
	if err := w.Owner.QueryRow(t.Context(), "SELECT coalesce(sum(next_offset), 0) FROM "+w.Relation("positions")).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// Decisions are what was written down, and why.
func (w *World) Decisions(t *testing.T) (kinds string) {
	t.Helper()
	if err := w.Owner.QueryRow(t.Context(), "SELECT coalesce(string_agg(kind || ' ' || reason, ', ' ORDER BY id), '') FROM "+w.Relation("decisions")).Scan(&kinds); err != nil {
		t.Fatal(err)
	}
	return kinds
}

// File is a configuration of the pipeline with these lines for its key rule.
func (w *World) File(t *testing.T, rule string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
pipeline: orders
kafka: {brokers: [%q], topics: [orders]}
postgres: {dsn: %q, schema: %q}
%s
sink: {table: {schema: %q, name: orders, columns: {order_id: order_id}}}
`, w.Broker, w.RuntimeDSN, w.Schema, rule, w.User), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// Do runs a verb under a key rule, as the runtime role.
func (w *World) Do(t *testing.T, cmd *cobra.Command, rule string, args ...string) (out string, err error) {
	t.Helper()
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append(args, "-c", w.File(t, rule)))
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}
