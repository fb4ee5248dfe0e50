package processor_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"effectonce/internal/redistest"
	"effectonce/pkg/dedup/rediscache"
	"effectonce/pkg/stream"
)

func cacheIn(t *testing.T, s *redistest.Server, prefix string) *rediscache.Cache {
	t.Helper()
	c, err := rediscache.New(rediscache.Config{
		Addresses: []string{s.Address}, Prefix: prefix, Timeout: 500 * time.Millisecond, Pause: 10 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// tale is a pipeline with a memory for hardly any keys, which is stopped and begins
// again: each time without a filter, and with repeats from all of its past.
type tale struct {
	*world
	rng        *rand.Rand
	made, sent int
}

func newTale(t *testing.T, seed uint64) *tale {
	t.Helper()
	w := &tale{world: newWorld(t, 2), rng: rand.New(rand.NewPCG(seed, 1))}
	w.admin(t)
	w.cfg.DedupMemory, w.cfg.BatchRecords = 2, 500
	return w
}

// chapter is one life of the pipeline. It ends when all is committed, and told, an
// outcome of the cache, has happened: records are sent until it does.
func (w *tale) chapter(t *testing.T, told string) {
	t.Helper()
	// What the last life left half built would keep this one from sealing for a minute.
	w.db.Exec(t, "UPDATE "+w.db.Relation("segments")+" SET state = 'dead' WHERE state = 'building'")
	w.send(t, 4000)
	w.run(t, func() bool {
		if !w.at(t, int64(w.sent))() {
			return false
		}
		if told == "" || w.outcome(told) > 0 {
			return true
		}
		w.send(t, 500)
		return false
	})
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != int64(w.made) {
		t.Fatalf("%s: %d effects of %d keys", told, n, w.made)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != int64(w.made) {
		t.Fatalf("%s: %d keys, want %d", told, n, w.made)
	}
}

// send produces records, a fifth of them repeats from all of the past.
func (w *tale) send(t *testing.T, n int) {
	t.Helper()
	var ids []string
	for range n {
		if w.made > 0 && w.rng.IntN(5) == 0 {
			ids = append(ids, fmt.Sprintf("o%d", w.rng.IntN(w.made)))
			continue
		}
		ids = append(ids, fmt.Sprintf("o%d", w.made))
		w.made++
	}
	w.sent += n
	w.produce(t, ids...)
}

// outcome is a sample of the cache's metric.
func (w *tale) outcome(name string) int {
	_, rest, found := strings.Cut(w.get("/metrics"), `effectonce_filter_cache_total{outcome="`+name+`"} `)
	if !found {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(rest[:strings.IndexByte(rest, '\n')]))
	if err != nil {
		return -1
	}
	return n
}

// TestRedisForgets (B58): whatever becomes of Redis between two lives of a pipeline,
// or in the middle of one, every key has one effect. Keys that a failed-over or full
// server has forgotten were applied again by others.
func TestRedisForgets(t *testing.T) {
	t.Parallel()
	rediscache.LogTo(func(string) {}) // of the server that is killed
	s := redistest.New(t)
	w := newTale(t, 1)
	w.cfg.Cache = cacheIn(t, s, "ours:")
	w.chapter(t, "stored")
	w.chapter(t, "hit") // rebuilt from Redis

	s.FlushAll(t.Context())
	w.chapter(t, "miss")

	w.chapter(t, "stored")
	s.Change("ours:", func(image string) string {
		b := []byte(image)
		for i := len(b) / 2; i < len(b); i++ {
			if b[i] != 0 {
				b[i] &= b[i] - 1 // a bit less: a key less
				break
			}
		}
		return string(b)
	})
	w.chapter(t, "rejected")

	w.chapter(t, "stored")
	other := newTale(t, 2)
	other.cfg.Cache = cacheIn(t, s, "theirs:")
	other.chapter(t, "stored")
	theirs := s.Under("theirs:")
	s.Change("ours:", func(string) string { return s.Get(t.Context(), theirs[w.rng.IntN(len(theirs))]).Val() })
	w.chapter(t, "rejected")

	w.chapter(t, "stored")
	s.Kill()
	w.chapter(t, "error")
	s.Start()
	w.cfg.Cache = cacheIn(t, s, "ours:") // a client that found nobody does not look again at once
	w.chapter(t, "stored")
	s.Evict("ours:")
	w.chapter(t, "miss")

	goOn := s.Freeze()
	w.chapter(t, "error")
	goOn()
	w.chapter(t, "")

	if n := w.count(t, "SELECT coalesce(sum(duplicate), 0)::bigint FROM "+w.db.Relation("audit")); n != int64(w.sent-w.made) {
		t.Errorf("%d duplicates in the audit, want %d", n, w.sent-w.made)
	}
}

// stuck is a cache that answers nothing before the pipeline ends.
type stuck struct{ asked chan struct{} }

func (s stuck) Load(ctx context.Context, _ stream.UUID) ([]byte, error) {
	select {
	case s.asked <- struct{}{}:
	default:
	}
	<-ctx.Done()
	return nil, ctx.Err()
}

func (s stuck) Store(ctx context.Context, _ stream.UUID, _ []byte) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestNoCommitWaitsForTheCache: a cache hangs for as long as the pipeline lives.
// Records are applied meanwhile, repeats among them recognised, and the pipeline
// stops when it is told to.
func TestNoCommitWaitsForTheCache(t *testing.T) {
	t.Parallel()
	w := newTale(t, 3)
	for w.count(t, "SELECT count(*) FROM "+w.db.Relation("segments")+" WHERE state = 'live'") == 0 {
		w.chapter(t, "") // without a cache
	}
	s := stuck{make(chan struct{}, 1)}
	w.cfg.Cache = s
	w.chapter(t, "")
	select {
	case <-s.asked:
	default:
		t.Error("nobody asked the cache")
	}
}
