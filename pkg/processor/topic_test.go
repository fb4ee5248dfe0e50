package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/processor"
	"effectonce/pkg/stream"
)

// everywhere sends each key to every partition, in an order of its own on each.
func (w *world) everywhere(t *testing.T, rng *rand.Rand, partitions int32, ids ...string) {
	t.Helper()
	client := kafkatest.Client(t, w.broker, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	var recs []*kgo.Record
	for n := range partitions {
		for _, i := range rng.Perm(len(ids)) {
			recs = append(recs, &kgo.Record{
				Topic: w.topic, Partition: n, Value: fmt.Appendf(nil, `{"order_id":%q,"amount":%d}`, ids[i], n),
			})
		}
	}
	if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// members runs n members of the group, each of which has partitions when it returns,
// until the test ends or end is called.
func (w *world) members(t *testing.T, n int) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var eg errgroup.Group
	var regs []*prometheus.Registry
	for range n {
		cfg := w.cfg
		cfg.Registry = prometheus.NewRegistry()
		regs = append(regs, cfg.Registry)
		eg.Go(func() error { return processor.Run(ctx, cfg) })
	}
	w.await(t, func() bool {
		return !slices.ContainsFunc(regs, func(r *prometheus.Registry) bool { return held(t, r) == 0 })
	})
	return sync.OnceFunc(func() {
		cancel()
		if err := eg.Wait(); err != nil {
			t.Error(err)
		}
	})
}

// held is the number of partitions that a member's metrics say it runs.
func held(t *testing.T, r *prometheus.Registry) (n float64) {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "effectonce_partitions" {
			continue
		}
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == "running" {
				n = m.GetGauge().GetValue()
			}
		}
	}
	return n
}

// await waits for a condition that nothing announces.
func (w *world) await(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatal("not done in time")
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// In scope topic members race for the same keys: each is applied once, by whoever
// commits first, and the others find that out from the log. A unique constraint that
// refuses the second copy blames nobody.
func TestScopeTopic(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, constraint string
		memory           int64
	}{
		{name: "plain"},
		{name: "sealed", memory: 2},
		{name: "unique", constraint: "ADD UNIQUE (order_id)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			const partitions, keys, rounds = 4, 1500, 4
			w := newWorld(t, partitions)
			w.cfg.Scope, w.cfg.BatchRecords, w.cfg.DedupMemory = stream.ScopeTopic, 200, c.memory
			w.cfg.Partitioner = "murmur2" // says nothing in scope topic
			if c.constraint != "" {
				w.db.Exec(t, "ALTER TABLE "+w.orders()+" "+c.constraint)
			}
			end := w.members(t, 4)
			defer end()
			rng := rand.New(rand.NewPCG(7, 7))
			var ids []string
			for range rounds {
				for range keys / rounds {
					ids = append(ids, fmt.Sprintf("o%d", len(ids)))
				}
				w.everywhere(t, rng, partitions, ids[len(ids)-keys/rounds:]...)
			}
			w.everywhere(t, rng, partitions, ids...) // all of it again
			sent := int64(2 * partitions * keys)
			w.await(t, w.at(t, sent))
			end()
			w.once(t, keys, sent)
		})
	}
}

// once holds rows, audit and dead letters against what was sent.
func (w *world) once(t *testing.T, keys, sent int64) {
	t.Helper()
	for sql, want := range map[string]int64{
		"SELECT count(*) FROM " + w.orders():                                                                 keys,
		"SELECT count(DISTINCT order_id) FROM " + w.orders():                                                 keys,
		"SELECT coalesce(sum(applied), 0)::bigint FROM " + w.db.Relation("audit"):                            keys,
		"SELECT coalesce(sum(duplicate), 0)::bigint FROM " + w.db.Relation("audit"):                          sent - keys,
		"SELECT count(*) FROM " + w.db.Relation("dead_letters"):                                              0,
		"SELECT count(*) FROM " + w.db.Relation("logs"):                                                      1,
		"SELECT (head - (SELECT max(seq) FROM " + w.db.Relation("runs") + ")) FROM " + w.db.Relation("logs"): 0,
	} {
		if n := w.count(t, sql); n != want {
			t.Errorf("%s: %d, want %d", sql, n, want)
		}
	}
}
