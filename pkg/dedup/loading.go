package dedup

import (
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// loading is what one round trip finds of a log. Its statements have a snapshot each:
// what was read is of one piece if the last one still finds the manifest of the first.
type loading struct {
	learner // of the view that is made

	old      *View // may be nil
	headID   stream.UUID
	from     int64 // the first run it reads
	same     bool  // the segments are those of the view's manifest
	ancestor bool  // old's last run is one of this log
}

// begin makes the view from the log's row. A log whose runs are all sealed is proven
// by its last run, which pruning keeps.
func (r *loading) begin(h head) {
	v := newView(h.log, h.generation)
	v.Head, v.sealed, v.manifest = h.sealed, h.sealed, h.manifest
	r.learner = learner{v: v, next: h.sealed + 1, last: h.head, proven: true}
	if h.sealed == h.head {
		v.HeadID = h.headID
		r.next, r.proven = max(h.head, 1), h.head == 0
	}
	r.headID, r.from = h.headID, r.next
}

// unsealedBytes makes room for the keys that come: growing with them costs as much as
// adding them. A length is known without reading the value.
func (s *Store) unsealedBytes(pipeline int64, scope stream.Partition, r *loading) pgtx.Statement {
	return s.ofScope(pipeline, scope, `SELECT coalesce(sum(octet_length(r.fingerprints)), 0)::bigint
		FROM @schema@.logs l JOIN @schema@.runs r ON r.log = l.id AND r.seq > l.sealed WHERE @scope@`,
		func(row pgtx.Row) error {
			var bytes int64
			err := row.Scan(&bytes)
			if r.v != nil {
				r.v.fresh.keys = newSet(int(bytes / 16))
			}
			return err
		})
}

// segments reads the list of the live ones.
func (s *Store) segments(pipeline int64, scope stream.Partition, r *loading) pgtx.Statement {
	return s.ofScope(pipeline, scope, `SELECT l.manifest, s.id, s.tier, s.keys, s.blocks, s.first_run, s.last_run, s.oldest, s.newest, s.filter_digest
		FROM @schema@.logs l LEFT JOIN @schema@.segments s ON s.log = l.id AND s.state = 'live'
		WHERE @scope@ ORDER BY s.first_run, s.id`,
		func(row pgtx.Row) error {
			var manifest stream.UUID
			var id *[16]byte
			var tier *int32
			var n [4]*int64
			var oldest, newest *time.Time
			var digest []byte
			err := row.Scan((*[16]byte)(&manifest), &id, &tier, &n[0], &n[1], &n[2], &n[3], &oldest, &newest, &digest)
			if r.v == nil {
				return err
			}
			r.same = manifest == r.v.manifest
			if err != nil || id == nil {
				return err
			}
			seg := &Segment{ID: *id, Tier: int(*tier), Keys: *n[0], Blocks: *n[1], First: *n[2], Last: *n[3], Digest: digest}
			if oldest != nil && newest != nil {
				seg.Oldest, seg.Newest = *oldest, *newest
			}
			r.v.segments = append(r.v.segments, seg)
			return nil
		})
}

// ancestor asks whether old's last run is one of this very log, in a snapshot in
// which the log has the new view's manifest. A run names all before it, as a manifest
// does, so old and the log have the same runs up to old's head then.
func (s *Store) ancestor(pipeline int64, scope stream.Partition, r *loading) pgtx.Statement {
	var log, seq int64 // 0 is no log's
	var id stream.UUID
	if r.old != nil {
		log, seq, id = r.old.Log, r.old.Head, r.old.HeadID
	}
	return s.ofScope(pipeline, scope, `SELECT l.manifest FROM @schema@.logs l JOIN @schema@.runs r ON r.log = l.id
		WHERE @scope@ AND l.id = $4 AND r.seq = $5 AND r.run_id = $6`,
		func(row pgtx.Row) error {
			var manifest stream.UUID
			err := row.Scan((*[16]byte)(&manifest))
			r.ancestor = r.v != nil && manifest == r.v.manifest
			return err
		}, pgtx.Int8(log), pgtx.Int8(seq), pgtx.UUID(id))
}

// unsealedRuns reads the first page of the runs behind the segments, or the last run
// where there is none.
func (s *Store) unsealedRuns(pipeline int64, scope stream.Partition, r *loading) pgtx.Statement {
	return s.ofScope(pipeline, scope, `SELECT r.seq, r.run_id, CASE WHEN r.seq > l.sealed THEN r.fingerprints END
		FROM @schema@.logs l JOIN @schema@.runs r ON r.log = l.id AND r.seq >= CASE WHEN l.sealed < l.head THEN l.sealed + 1 ELSE l.head END
		WHERE @scope@ ORDER BY r.seq LIMIT $4`,
		func(row pgtx.Row) error {
			if r.v == nil {
				return nil
			}
			return r.row(row)
		}, pgtx.Int8(page))
}
