package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// ErrDropView says that the rows do not prove what lies between the view's head
// and the log's: drop the view and load it again.
var ErrDropView = errors.New("the view's head is not in its log any more")

// ErrNoLog says that the scope has no open log: the database is not the one this
// claim was made on.
var ErrNoLog = errors.New("the scope has no open log")

// ErrLogClosed says that the scope's log is closed and it has no other: the topic's
// generation has changed. Give the claim up; the next takeover says so.
var ErrLogClosed = errors.New("the scope's log is closed")

// head is a log's row.
type head struct {
	log              int64
	generation       []byte
	head, sealed     int64
	headID, manifest stream.UUID
}

// head reads the row of a scope's open log. Each kind of scope has an index of its
// own condition, and none would serve both at once.
func (s *Store) head(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition) (head, error) {
	var h head
	stmt := pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT id, generation, head, head_id, manifest, sealed FROM @schema@.logs
			WHERE pipeline = $1 AND topic_id = $2 AND state = 'open' AND partition `),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(scope.Topic)},
		Row: func(r pgtx.Row) error {
			return r.Scan(&h.log, &h.generation, &h.head, (*[16]byte)(&h.headID), (*[16]byte)(&h.manifest), &h.sealed)
		},
	}
	if scope.Number == WholeTopic {
		stmt.SQL += `IS NULL`
	} else {
		stmt.SQL += `= $3`
		stmt.Params = append(stmt.Params, pgtx.Int4(scope.Number))
	}
	err := pgtx.Once(ctx, conn, set, stmt)
	if err == nil && h.log == 0 {
		err = s.without(ctx, conn, set, pipeline, scope)
	}
	return h, err
}

// without says why a scope has no open log.
func (s *Store) without(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition) error {
	why := ErrNoLog
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT FROM @schema@.logs WHERE pipeline = $1 AND topic_id = $2 AND state = 'closed'
			AND (partition = $3 OR partition IS NULL) LIMIT 1`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(scope.Topic), pgtx.Int4(scope.Number)},
		Row: func(pgtx.Row) error {
			why = ErrLogClosed
			return nil
		},
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: %s", why, scope)
}

// Load reads the scope's log into a new view: the list of its segments, and the keys
// of the runs behind them, between two readings of the log's row with the same
// manifest. The view can be used at once; where it has segments it asks them about
// every key it does not know until Rebuild has made its gate. It may be behind the
// log when it returns: the head compare of the next commit says so.
//
// old, which may be nil, is a view that has to be loaded again, mostly because
// somebody else has sealed or merged. The new one inherits its filters as far as it
// is proven that they hold the keys of this log's segments, and asks for a Rebuild
// that reads the rest. Nobody appends to old any more; what still works on it in the
// background may end in peace, and helps no one. After an error old has what it had.
func (s *Store) Load(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition, old *View) (*View, error) {
	for tries := 1; ; tries++ {
		v, err := s.load(ctx, conn, set, pipeline, scope, old)
		if err == nil && v == nil || errors.Is(err, ErrDropView) && tries < loadTries {
			continue // sealed meanwhile: what was read is torn
		}
		return v, err
	}
}

// loadTries is how often rows that do not fit together are read before they are
// taken to be damaged. A log that goes back and forth while it is read looks so.
const loadTries = 3

// load returns nil and nil when the manifest moved.
func (s *Store) load(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition, old *View) (*View, error) {
	h, err := s.head(ctx, conn, set, pipeline, scope)
	if err != nil {
		return nil, err
	}
	v := newView(h.log, h.generation)
	v.Head, v.sealed, v.manifest = h.sealed, h.sealed, h.manifest
	same, err := s.segments(ctx, conn, set, v)
	if err != nil || !same {
		return nil, err
	}
	damaged := s.follow(ctx, conn, set, v, h, h.sealed+1)
	if damaged != nil && !errors.Is(damaged, ErrDropView) {
		return nil, damaged
	}
	ancestor, err := s.ancestor(ctx, conn, set, v, old)
	if err != nil {
		return nil, err
	}
	again, err := s.head(ctx, conn, set, pipeline, scope)
	if err != nil {
		return nil, err
	}
	if again.manifest != h.manifest || again.log != h.log {
		return nil, nil
	}
	if damaged != nil {
		return nil, damaged
	}
	if old != nil {
		v.inherit(old, ancestor)
	}
	return v, nil
}

// segments reads the list of the live ones. It returns false if the statement ran
// under another manifest than the view's.
func (s *Store) segments(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) (same bool, err error) {
	err = pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT l.manifest, s.id, s.tier, s.keys, s.blocks, s.first_run, s.last_run, s.oldest, s.newest, s.filter_digest
			FROM @schema@.logs l LEFT JOIN @schema@.segments s ON s.log = l.id AND s.state = 'live'
			WHERE l.id = $1 ORDER BY s.first_run, s.id`),
		Params: []pgtx.Param{pgtx.Int8(v.Log)},
		Row: func(r pgtx.Row) error {
			var manifest stream.UUID
			var id *[16]byte
			var tier *int32
			var n [4]*int64
			var oldest, newest *time.Time
			var digest []byte
			err := r.Scan((*[16]byte)(&manifest), &id, &tier, &n[0], &n[1], &n[2], &n[3], &oldest, &newest, &digest)
			same = manifest == v.manifest
			if err != nil || id == nil {
				return err
			}
			seg := &Segment{ID: *id, Tier: int(*tier), Keys: *n[0], Blocks: *n[1], First: *n[2], Last: *n[3], Digest: digest}
			if oldest != nil && newest != nil {
				seg.Oldest, seg.Newest = *oldest, *newest
			}
			v.segments = append(v.segments, seg)
			return nil
		},
	})
	return same, err
}

// CatchUp reads the runs between the view's head and the log's. ErrDropView means
// that they are not proven: the run at the view's head must still carry its
// head_id, what follows must be contiguous and have its fingerprints. It means as
// well that the log's segments are not the view's: Load makes a view with them.
func (s *Store) CatchUp(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition, v *View) error {
	had := v.named()
	h, err := s.head(ctx, conn, set, pipeline, scope)
	if err != nil {
		return err
	}
	mine := v.adopt(h.manifest)
	switch {
	case !mine && had != v.named(): // a change of its own came true behind the reading
		return s.CatchUp(ctx, conn, set, pipeline, scope, v)
	case h.log != v.Log, !mine, h.sealed > v.Head, h.head < v.Head:
		return ErrDropView
	case h.headID == v.HeadID:
		return nil
	case h.head == v.Head && v.Head > 0: // a number proves nothing: it was given out twice
		return ErrDropView
	}
	return s.follow(ctx, conn, set, v, h, max(v.Head, 1))
}

// proven requires that the last run of a log whose runs are all sealed carries the
// log's head_id. Its row is the one that pruning keeps.
func (s *Store) proven(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, h head) error {
	if h.head == 0 {
		return nil
	}
	var id stream.UUID
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT run_id FROM @schema@.runs WHERE log = $1 AND seq = $2`),
		Params: []pgtx.Param{pgtx.Int8(h.log), pgtx.Int8(h.head)},
		Row:    func(r pgtx.Row) error { return r.Scan((*[16]byte)(&id)) },
	})
	if err == nil && id != h.headID {
		err = fmt.Errorf("%w: run %d is not its head", ErrDropView, h.head)
	}
	return err
}

// follow reads runs from seq on, up to h, into v. The run at v.Head, if it is read,
// proves that v is of this log.
func (s *Store) follow(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, h head, seq int64) error {
	if h.head == v.Head && v.Head == h.sealed { // nothing unsealed
		if err := s.proven(ctx, conn, set, h); err != nil {
			return err
		}
		v.HeadID = h.headID
		return nil
	}
	l := learner{v: v, next: seq, last: h.head, proven: seq > v.Head}
	for l.next <= h.head {
		from := l.next
		if err := pgtx.Once(ctx, conn, set, s.runs(&l)); err != nil {
			return err
		}
		if err := l.read(from); err != nil {
			return err
		}
	}
	return l.end(h.headID)
}
