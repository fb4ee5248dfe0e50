package dedup

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// history is a log with segments of random keys.
type history struct {
	*world
	v    *View
	keys [][]slot // segment by segment
}

func newHistory(b *testing.B, segments, keys int) *history {
	b.Helper()
	h := &history{world: newWorldOf(b, 1)}
	h.v = h.load(0)
	rng := fixed(11, uint64(segments))
	for range segments {
		h.keys = append(h.keys, h.learn(rng, keys))
		h.seal(h.v)
	}
	h.clean(h.v)
	return h
}

// learn commits runs of 10,000 keys.
func (h *history) learn(rng *rand.Rand, keys int) []slot {
	all := uniform(rng, keys)
	order := rng.Perm(keys / 10_000)
	for i := range keys / 10_000 {
		var run []byte
		for j := order[i]; j < keys; j += keys / 10_000 {
			run = all[j].append(run)
		}
		r := Run{View: h.v, ID: stream.NewUUID(), Fingerprints: run}
		if err := h.append(h.t.Context(), h.conn, r); err != nil {
			h.t.Fatal(err)
		}
		h.v.Learn(r.ID, run)
	}
	return all
}

// BenchmarkSeal writes a segment of 1 M keys, BenchmarkCompact merges eight of them.
func BenchmarkSeal(b *testing.B) {
	h := newHistory(b, 0, 0)
	rng := fixed(1, 2)
	const n = 1_000_000
	var took time.Duration
	for range b.N {
		h.learn(rng, n)
		start := time.Now()
		h.seal(h.v)
		took += time.Since(start)
	}
	b.ReportMetric(float64(b.N)*n/took.Seconds()/1e6, "Mkeys/s")
}

func BenchmarkCompact(b *testing.B) {
	for range b.N {
		h := newHistory(b, 8, 250_000)
		start := time.Now()
		if h.compact(h.v) != 8 {
			b.Fatal("nothing merged")
		}
		b.ReportMetric(2/time.Since(start).Seconds(), "Mkeys/s")
	}
}

// BenchmarkRebuild compares a rebuild with a bare scan of the same blocks by pgx.
func BenchmarkRebuild(b *testing.B) {
	const segments, keys = 8, 1_000_000
	h := newHistory(b, segments, keys)
	h.Exec(b, "VACUUM (ANALYZE) "+h.Relation("blocks"))
	var scan, rebuild time.Duration
	for range b.N {
		start := time.Now()
		h.scan(b, segments*keys)
		scan += time.Since(start)
		v := h.load(0)
		start = time.Now()
		h.rebuild(v)
		rebuild += time.Since(start)
	}
	b.ReportMetric(float64(b.N)*segments*keys/rebuild.Seconds()/1e6, "Mkeys/s")
	b.ReportMetric(float64(b.N)*segments*keys/scan.Seconds()/1e6, "scanned-Mkeys/s")
	b.ReportMetric(rebuild.Seconds()/scan.Seconds(), "rebuild/scan")
}

func (h *history) scan(b *testing.B, want int) {
	n := 0
	err := pgtx.Once(b.Context(), h.conn, patient, pgtx.Statement{
		SQL: "SELECT fingerprints FROM " + h.Relation("blocks"),
		Row: func(r pgtx.Row) error {
			var block pgtype.DriverBytes
			err := r.Scan(&block)
			n += len(block) / 16
			return err
		},
	})
	if err != nil || n != want {
		b.Fatal(n, err)
	}
}

// BenchmarkLookUp asks for old keys, with the segments' filters and without any.
func BenchmarkLookUp(b *testing.B) {
	h := newHistory(b, 5, 1_000_000)
	rng := fixed(3, 4)
	bare := h.load(0)
	for _, c := range []struct {
		name string
		v    *View
		old  bool
	}{{"old", h.v, true}, {"old/unfiltered", bare, true}, {"new/unfiltered", bare, false}} {
		for _, n := range []int{100, 2000} {
			b.Run(fmt.Sprintf("%s/%d", c.name, n), func(b *testing.B) {
				var asked, confirmed int
				for range b.N {
					var f Fold
					f.Reset(0)
					for range n {
						k := slot{rng.Uint64(), rng.Uint64()}
						if c.old {
							seg := h.keys[rng.IntN(len(h.keys))]
							k = seg[rng.IntN(len(seg))]
						}
						f.Add(Fingerprint(k.append(nil)))
					}
					f.Check(c.v)
					if err := h.store.LookUp(b.Context(), h.conn, patient, &f); err != nil || f.Open() {
						b.Fatal(err)
					}
					asked += f.Asked
					confirmed += f.Confirmed
				}
				b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(asked), "µs/key")
				if c.old && confirmed < asked {
					b.Errorf("%d of %d found", confirmed, asked)
				}
			})
		}
	}
}

// BenchmarkCheck is a batch of 10,000 new keys against a gate of 20 M.
func BenchmarkCheck(b *testing.B) {
	const n = 20_000_000
	v := newView(1, nil)
	rng := fixed(5, 5)
	v.gate = newFilter(n, gateShape)
	for range n {
		v.gate.add(slot{rng.Uint64(), rng.Uint64()})
	}
	v.segments = []*Segment{{Keys: n, filter: newFilter(1, segmentShape)}}
	batches := make([][]Fingerprint, 50)
	for i := range batches {
		for range 10_000 {
			batches[i] = append(batches[i], Fingerprint(slot{rng.Uint64(), rng.Uint64()}.append(nil)))
		}
	}
	var f Fold
	b.ResetTimer()
	asked := 0
	for i := range b.N {
		f.Reset(0)
		for _, fp := range batches[i%len(batches)] {
			f.Add(fp)
		}
		asked += f.Check(v)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/10_000, "ns/key")
	b.ReportMetric(float64(asked)/float64(b.N)/100, "%maybe")
}

// BenchmarkSize is what a key takes in Postgres, indexes included: at once after a
// merge, when autovacuum has been there, and when nothing is free (what the same
// tables take after VACUUM FULL). The space of a merge's inputs is used again by the
// seals that follow.
func BenchmarkSize(b *testing.B) {
	for range b.N {
		const keys = 8 * 500_000
		h := newHistory(b, 8, keys/8)
		if h.compact(h.v) != 8 {
			b.Fatal("nothing merged")
		}
		h.clean(h.v)
		for n := int64(1); n > 0; {
			var err error
			if n, err = h.store.Prune(b.Context(), h.conn, patient, h.v.Log, 0); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(h.size()/keys, "B/key-at-once")
		for _, table := range tables {
			h.Exec(b, "VACUUM "+h.Relation(table))
		}
		b.ReportMetric(h.size()/keys, "B/key-vacuumed")
		rng := fixed(77, 77)
		for range 7 { // the space is used again
			h.learn(rng, keys/8)
			h.seal(h.v)
			h.clean(h.v)
			for _, table := range tables {
				h.Exec(b, "VACUUM "+h.Relation(table))
			}
		}
		b.ReportMetric(h.size()/(keys+7*keys/8), "B/key-refilled")
		for _, table := range tables {
			h.Exec(b, "VACUUM FULL "+h.Relation(table))
		}
		b.ReportMetric(h.size()/(keys+7*keys/8), "B/key")
	}
}

var tables = []string{"runs", "blocks", "segments", "logs"} //nolint:gochecknoglobals // a constant

func (h *history) size() (n float64) {
	h.t.Helper()
	for _, table := range tables {
		var bytes float64
		if err := h.Owner.QueryRow(h.t.Context(), "SELECT pg_total_relation_size($1)::float8", h.Relation(table)).Scan(&bytes); err != nil {
			h.t.Fatal(err)
		}
		n += bytes
	}
	return n
}

// BenchmarkLoad reads a log's unsealed keys into a view, as a takeover does.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{10_000, 250_000, 1_000_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			h := newHistory(b, 3, 100_000)
			h.learn(fixed(3, 4), n)
			b.ResetTimer()
			for range b.N {
				if v := h.load(0); v.Keys() != n {
					b.Fatalf("%d keys", v.Keys())
				}
			}
			b.ReportMetric(float64(b.N)*float64(n)/b.Elapsed().Seconds()/1e6, "Mkeys/s")
		})
	}
}
