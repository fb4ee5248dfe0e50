package dedup

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// expiry is what a log's segments are compared with.
type expiry struct {
	retention time.Duration
	ends      map[int32]int64
}

// Expire lets the segments die whose newest record is older than the log's progress
// less retention, and returns the number of their keys. Progress is a time of
// records: nothing expires because a clock went on. ends are the end offsets of the
// topic's partitions as Kafka tells them: in scope topic the slowest partition
// decides, but not one that has been read to its end. A hold keeps its segments.
//
// Expired keys are unknown from then on: a record that brings one again is applied
// again. Errors are those of Seal.
func (s *Store) Expire(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, retention time.Duration, ends map[int32]int64) (int64, error) {
	done, err := s.turn(ctx, conn, set, v)
	if err != nil {
		return 0, err
	}
	defer done()
	if err := s.times(ctx, conn, set, v); err != nil {
		return 0, err
	}
	p := &swap{expiry: &expiry{retention, ends}}
	if p.dead, err = s.expired(ctx, conn, set, v, p.expiry); err != nil || len(p.dead) == 0 {
		return 0, err
	}
	keys := int64(0)
	for _, seg := range p.dead {
		keys += seg.Keys
	}
	return keys, s.swap(ctx, conn, set, v, p)
}

// expired asks which of the view's segments may die.
func (s *Store) expired(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, e *expiry) ([]*Segment, error) {
	live := v.live()
	var dead []*Segment
	strange := false
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT id FROM @schema@.expired_segments($1, $2 * interval '1 ms', $3, $4) AS id`),
		Params: append([]pgtx.Param{pgtx.Int8(v.Log)}, e.params()...),
		Row: func(r pgtx.Row) error {
			var id stream.UUID
			err := r.Scan((*[16]byte)(&id))
			i := slices.IndexFunc(live, func(seg *Segment) bool { return seg.ID == id })
			if strange = strange || i < 0; !strange {
				dead = append(dead, live[i])
			}
			return err
		},
	})
	if err == nil && strange {
		err = fmt.Errorf("%w: its segments are others", ErrDropView)
	}
	return dead, err
}

func (e *expiry) params() []pgtx.Param {
	partitions := slices.Sorted(maps.Keys(e.ends))
	ends := make([]int64, len(partitions))
	for i, n := range partitions {
		ends[i] = e.ends[n]
	}
	return []pgtx.Param{pgtx.Int8(e.retention.Milliseconds()), pgtx.Int4s(partitions), pgtx.Int8s(ends)}
}

// expireSegments is the statement of a swap that only lets segments die. It decides
// once more whether they may: a hold may have been placed since.
func (s *Store) expireSegments(log int64, p *swap) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL:  s.sql(`SELECT @schema@.expire_segments($1, $2, $3, $4, $5 * interval '1 ms', $6, $7)`),
		Params: append([]pgtx.Param{
			pgtx.Int8(log), pgtx.UUID(p.from), pgtx.UUID(p.manifest), pgtx.UUIDs(ids(p.dead)),
		}, p.expiry.params()...),
	}
}

func ids(segments []*Segment) []stream.UUID {
	out := make([]stream.UUID, len(segments))
	for i, seg := range segments {
		out[i] = seg.ID
	}
	return out
}

// Unsealed returns for how long, by the database's clock, the oldest key that is in
// no segment has been in the log; 0 when all are. Only what is sealed can expire, so
// with a retention a run is sealed after a window at the latest.
func (s *Store) Unsealed(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) (time.Duration, error) {
	var ms int64
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT coalesce(extract(epoch FROM clock_timestamp() - min(r.committed_at)) * 1000, 0)::bigint
			FROM @schema@.logs l
			JOIN @schema@.runs r ON r.log = l.id AND r.seq > l.sealed AND octet_length(r.fingerprints) > 0
			WHERE l.id = $1`),
		Params: []pgtx.Param{pgtx.Int8(v.Log)},
		Row:    func(r pgtx.Row) error { return r.Scan(&ms) },
	})
	return time.Duration(ms) * time.Millisecond, err
}

// windows is how many windows a retention has. Segments of different windows are
// never merged, so a key outlives its retention by one window, or by what one seal
// spans.
const windows = 16

// Window is the length of a window of expiry.
func Window(retention time.Duration) time.Duration { return max(retention/windows, time.Millisecond) }

// Windows tells Compact which window of expiry a segment is in. All segments without
// times are in one of their own: merged with others they would keep these from ever
// expiring. Without a retention it is nil: one window for all.
func Windows(retention time.Duration) func(Segment) int64 {
	if retention <= 0 {
		return nil
	}
	return func(seg Segment) int64 {
		if seg.Newest.IsZero() {
			return math.MinInt64
		}
		return seg.Newest.UnixMilli() / Window(retention).Milliseconds()
	}
}

// times has the view's segments know theirs. Those of a segment of its own making
// were decided by the transaction that made it live.
func (s *Store) times(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) error {
	live := v.live()
	if !slices.ContainsFunc(live, func(seg *Segment) bool { return seg.Newest.IsZero() }) {
		return nil
	}
	return pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT id, oldest, newest FROM @schema@.segments WHERE id = ANY ($1) AND newest IS NOT NULL`),
		Params: []pgtx.Param{pgtx.UUIDs(ids(live))},
		Row: func(r pgtx.Row) error {
			var id stream.UUID
			var oldest, newest time.Time
			err := r.Scan((*[16]byte)(&id), &oldest, &newest)
			v.mu.Lock()
			defer v.mu.Unlock()
			for _, seg := range live {
				if seg.ID == id {
					seg.Oldest, seg.Newest = oldest, newest
				}
			}
			return err
		},
	})
}
