package processor_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/pkg/processor"
	"effectonce/pkg/sink"
)

// world is a topic on kfake, a private schema, and a table without a unique
// constraint: what proves that an effect happened once is the pipeline, not an
// index.
type world struct {
	db     *pgtest.DB
	broker string
	fake   *kfake.Cluster // nil on the real Kafka
	topic  string
	cfg    processor.Config
}

func newWorld(t *testing.T, partitions int32) *world {
	t.Helper()
	w := &world{db: pgtest.New(t), topic: "orders"}
	w.fake = kafkatest.Fake(t, partitions, w.topic)
	w.broker = w.fake.ListenAddrs()[0]
	w.db.Table(t, "orders", "order_id text, amount bigint")
	pg, err := pgxpool.ParseConfig(w.db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	w.cfg = processor.Config{
		Pipeline: "orders", Topics: []string{w.topic},
		Kafka:    []kgo.Opt{kgo.SeedBrokers(w.broker)},
		Postgres: pg, Schema: w.db.Schema, Key: []string{"order_id"},
		Session: 6 * time.Second, Heartbeat: 500 * time.Millisecond,
		Table: &processor.Table{
			Schema: w.db.User, Name: "orders", Mode: sink.Insert,
			Columns: []processor.Column{{Name: "order_id", Source: "order_id"}, {Name: "amount", Source: "amount"}},
		},
		Logger: zerolog.New(zerolog.NewTestWriter(t)).Level(zerolog.DebugLevel),
	}
	if os.Getenv("VERBOSE") == "" {
		w.cfg.Logger = w.cfg.Logger.Level(zerolog.WarnLevel)
	}
	return w
}

func (w *world) produce(t *testing.T, ids ...string) {
	t.Helper()
	recs := make([]*kgo.Record, len(ids))
	for i, id := range ids {
		recs[i] = &kgo.Record{Topic: w.topic, Key: []byte(id), Value: []byte(fmt.Sprintf(`{"order_id":%q,"amount":%d}`, id, i))}
	}
	kafkatest.ProduceTo(t, w.broker, recs...)
}

// run runs the pipeline until done says so.
func (w *world) run(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, w.cfg) }()
	for !done() {
		select {
		case err := <-ended:
			t.Fatalf("the pipeline ended early: %v", err)
		case <-ctx.Done():
			t.Fatal("not done in time")
		case <-time.After(20 * time.Millisecond):
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

func (w *world) count(t *testing.T, sql string, args ...any) int64 {
	t.Helper()
	var n int64
	if err := w.db.Owner.QueryRow(t.Context(), sql, args...).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func TestEveryKeyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	var ids []string
	for i := range 5000 {
		ids = append(ids, fmt.Sprintf("o-%d", i%4500))
	}
	w.produce(t, ids...)
	positions := "SELECT coalesce(sum(next_offset), 0) FROM " + w.db.Relation("positions")
	w.run(t, func() bool { return w.count(t, positions) == 5000 })

	orders := w.orders()
	if n := w.count(t, "SELECT count(*) FROM "+orders); n != 4500 {
		t.Errorf("%d rows, want 4500", n)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+orders); n != 4500 {
		t.Errorf("%d distinct keys, want 4500", n)
	}
}

func (w *world) orders() string { return quoted(w.db.User, "orders") }

func quoted(parts ...string) string { return pgx.Identifier(parts).Sanitize() }
