package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// head reads the row of a scope's open log.
func (s *Store) head(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, scope stream.Partition) (head, error) {
	var h head
	err := pgtx.Once(ctx, conn, set, s.row(pipeline, scope, func(row head) { h = row }))
	if err == nil && h.log == 0 {
		err = s.without(ctx, conn, set, pipeline, scope)
	}
	return h, err
}

func (s *Store) row(pipeline int64, scope stream.Partition, row func(head)) pgtx.Statement {
	return s.ofScope(pipeline, scope, `SELECT l.id, l.generation, l.head, l.head_id, l.manifest, l.sealed FROM @schema@.logs l WHERE @scope@`,
		func(r pgtx.Row) error {
			var h head
			err := r.Scan(&h.log, &h.generation, &h.head, (*[16]byte)(&h.headID), (*[16]byte)(&h.manifest), &h.sealed)
			row(h)
			return err
		})
}

// ofScope is a statement about a scope's open log l. Each kind of scope has an index
// of its own condition, and none would serve both at once. more begin at $4.
func (s *Store) ofScope(pipeline int64, scope stream.Partition, text string, row func(pgtx.Row) error, more ...pgtx.Param) pgtx.Statement {
	is := `l.pipeline = $1 AND l.topic_id = $2 AND l.state = 'open' AND l.partition = $3`
	if scope.Number == WholeTopic {
		is = `l.pipeline = $1 AND l.topic_id = $2 AND l.state = 'open' AND l.partition IS NULL AND $3 < 0`
	}
	return pgtx.Statement{
		Step: pgtx.StepLog, SQL: s.sql(strings.ReplaceAll(text, "@scope@", is)),
		Params: append([]pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(scope.Topic), pgtx.Int4(scope.Number)}, more...),
		Row:    row,
	}
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
	r := loading{old: old}
	var again head
	last := s.row(pipeline, scope, func(h head) { again = h })
	err := pgtx.Once(ctx, conn, set, s.row(pipeline, scope, r.begin), s.unsealedBytes(pipeline, scope, &r), s.segments(pipeline, scope, &r),
		s.ancestor(pipeline, scope, &r), s.unsealedRuns(pipeline, scope, &r), last)
	switch {
	case err != nil:
		return nil, err
	case r.v == nil:
		return nil, s.without(ctx, conn, set, pipeline, scope)
	}
	damaged := r.read(r.from)
	if damaged == nil && r.next <= r.last {
		if damaged = s.rest(ctx, conn, set, &r.learner); damaged != nil && !errors.Is(damaged, ErrDropView) {
			return nil, damaged
		}
		if err := pgtx.Once(ctx, conn, set, last); err != nil {
			return nil, err
		}
	}
	if !r.same || again.manifest != r.v.manifest || again.log != r.v.Log {
		return nil, nil
	}
	if damaged == nil {
		damaged = r.end(r.headID)
	}
	if damaged != nil {
		return nil, damaged
	}
	if old != nil {
		r.v.inherit(old, r.ancestor)
	}
	return r.v, nil
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

// follow reads runs from seq on, up to h, into v. The run at v.Head, if it is read,
// proves that v is of this log.
func (s *Store) follow(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, h head, seq int64) error {
	if h.head == 0 { // there are none
		v.HeadID = h.headID
		return nil
	}
	l := learner{v: v, next: seq, last: h.head, proven: seq > v.Head}
	if err := s.rest(ctx, conn, set, &l); err != nil {
		return err
	}
	return l.end(h.headID)
}

// rest reads what the learner has not read yet, page by page.
func (s *Store) rest(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, l *learner) error {
	for l.next <= l.last {
		from := l.next
		if err := pgtx.Once(ctx, conn, set, s.runs(l)); err != nil {
			return err
		}
		if err := l.read(from); err != nil {
			return err
		}
	}
	return nil
}
