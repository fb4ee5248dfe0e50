package dedup

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Standing is what the tables hold of one log.
type Standing struct {
	Log       int64
	Partition stream.Partition // WholeTopic when the log is a whole topic's
	Open      bool

	Head, Sealed        int64 // numbers of runs
	Runs, RunKeys       int64 // not sealed
	SegmentKeys, Blocks int64 // of live segments
	Tiers               []int64
	Building, Dead      int64     // segments
	Oldest, Newest      time.Time // of the newest records of its runs; zero when unknown
	Progress            time.Time // what Expire compares with, as if no partition had been read to its end; zero when unknown
}

// Keys is the number of keys in the log.
func (l *Standing) Keys() int64 { return l.RunKeys + l.SegmentKeys }

// Segments is the number of live segments.
func (l *Standing) Segments() int64 {
	n := int64(0)
	for _, t := range l.Tiers {
		n += t
	}
	return n
}

// Standings returns all logs of a pipeline, closed ones too, by topic and partition.
func (s *Store) Standings(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64) ([]Standing, error) {
	var list []Standing
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT l.id, l.topic_id, coalesce(l.partition, -1), l.state = 'open', l.head, l.sealed, r.runs, r.keys,
				g.keys, g.blocks, g.tiers, g.building, g.dead, least(r.oldest, g.oldest), greatest(r.newest, g.newest),
				@schema@.log_progress(l.id, '{}', '{}')
			FROM @schema@.logs l
			CROSS JOIN LATERAL (SELECT count(*) AS runs, (coalesce(sum(octet_length(fingerprints)), 0) / 16)::bigint AS keys,
					min(newest) AS oldest, max(newest) AS newest
				FROM @schema@.runs WHERE log = l.id AND seq > l.sealed) r
			CROSS JOIN LATERAL (SELECT coalesce(sum(keys) FILTER (WHERE state = 'live'), 0)::bigint AS keys,
					coalesce(sum(blocks) FILTER (WHERE state = 'live'), 0)::bigint AS blocks,
					array_agg(tier) FILTER (WHERE state = 'live') AS tiers,
					count(*) FILTER (WHERE state = 'building') AS building, count(*) FILTER (WHERE state = 'dead') AS dead,
					min(oldest) FILTER (WHERE state = 'live') AS oldest, max(newest) FILTER (WHERE state = 'live') AS newest
				FROM @schema@.segments WHERE log = l.id) g
			WHERE l.pipeline = $1 ORDER BY l.topic_id, l.partition, l.id`),
		Params: []pgtx.Param{pgtx.Int8(pipeline)},
		Row: func(r pgtx.Row) error {
			var l Standing
			var tiers []int32
			var oldest, newest, progress *time.Time
			err := r.Scan(&l.Log, (*[16]byte)(&l.Partition.Topic), &l.Partition.Number, &l.Open, &l.Head, &l.Sealed, &l.Runs,
				&l.RunKeys, &l.SegmentKeys, &l.Blocks, &tiers, &l.Building, &l.Dead, &oldest, &newest, &progress)
			for _, t := range tiers {
				for len(l.Tiers) <= int(t) {
					l.Tiers = append(l.Tiers, 0)
				}
				l.Tiers[t]++
			}
			for _, at := range []struct{ to, from *time.Time }{{&l.Oldest, oldest}, {&l.Newest, newest}, {&l.Progress, progress}} {
				if at.from != nil {
					*at.to = *at.from
				}
			}
			list = append(list, l)
			return err
		},
	})
	return list, err
}

// Size is the room that the tables of this package take, indexes and TOAST
// included, with what waits for vacuum, and the keys of all logs in them.
type Size struct {
	Keys                         int64
	Logs, Runs, Segments, Blocks int64 // bytes
}

// Bytes is all of it.
func (z Size) Bytes() int64 { return z.Logs + z.Runs + z.Segments + z.Blocks }

// Size measures the schema. All its pipelines share the tables.
func (s *Store) Size(ctx context.Context, conn *pgx.Conn, set pgtx.Settings) (Size, error) {
	var z Size
	table := func(name string) pgtx.Param { return pgtx.Text(s.schema + "." + name) }
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT (SELECT coalesce(sum(keys), 0)::bigint FROM @schema@.segments WHERE state = 'live')
				+ (SELECT (coalesce(sum(octet_length(r.fingerprints)), 0) / 16)::bigint
					FROM @schema@.logs l JOIN @schema@.runs r ON r.log = l.id AND r.seq > l.sealed),
			pg_total_relation_size(to_regclass($1)), pg_total_relation_size(to_regclass($2)),
			pg_total_relation_size(to_regclass($3)), pg_total_relation_size(to_regclass($4))
				+ (SELECT coalesce(sum(pg_total_relation_size(inhrelid)), 0)::bigint FROM pg_inherits
					WHERE inhparent = to_regclass($4))`),
		Params: []pgtx.Param{table("logs"), table("runs"), table("segments"), table("blocks")},
		Row:    func(r pgtx.Row) error { return r.Scan(&z.Keys, &z.Logs, &z.Runs, &z.Segments, &z.Blocks) },
	})
	return z, err
}

// Probe asks the gate about so many random keys, which nobody sent, and returns the
// rate of false positives it was made for at its capacity, and what it shows now: 1
// while there is no gate and there are segments.
func (v *View) Probe(keys int) (target, measured float64) {
	maybes := 0
	for from := 0; from < keys; from += some {
		maybes += v.maybes(min(some, keys-from))
	}
	return gateShape.rate, float64(maybes) / float64(keys)
}

func (v *View) maybes(keys int) (n int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for range keys {
		if v.find(slot{rand.Uint64(), rand.Uint64()}) == maybe {
			n++
		}
	}
	return n
}

// FilterBytes is the memory of the segments' filters.
func (v *View) FilterBytes() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := int64(0)
	for _, seg := range v.segments {
		if seg.filter != nil {
			n += seg.filter.bytes()
		}
	}
	return n
}

// Begins tells the lowest offset of a partition that the audit rows of its open log
// name, if there are any.
func (s *Store) Begins(pipeline int64, p stream.Partition, found func(offset int64)) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT g.from_offset FROM @schema@.logs l
			JOIN @schema@.runs r ON r.log = l.id
			CROSS JOIN LATERAL unnest(r.ranges) g
			WHERE l.pipeline = $1 AND l.topic_id = $2 AND (l.partition = $3 OR l.partition IS NULL) AND l.state = 'open'
			  AND g.topic_id = $2 AND g.partition = $3
			ORDER BY g.from_offset LIMIT 1`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(p.Topic), pgtx.Int4(p.Number)},
		Row: func(r pgtx.Row) error {
			var first int64
			err := r.Scan(&first)
			found(first)
			return err
		},
	}
}
