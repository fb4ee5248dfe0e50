package dedup

import (
	"bytes"
	"context"
	"math"
	"slices"

	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtx"
)

// Hold is step 3 where many members write one log, scope topic: it locks the view's
// log for the rest of the transaction and has the view learn the runs in between,
// which are committed, whatever becomes of this transaction. It is one round trip as
// long as the view is at most a page of runs behind; before goes first in it. A
// transaction that holds several logs takes them in the order of their ids.
//
// After nil the view's HeadID is the log's until the transaction ends. Ask the fold
// whether it was Overtaken, and if not, Append.
//
// ErrDropView says that what lies between is not proven: roll back and load the view
// again. pgtx.CodeLogClosed says that the log is closed or of another generation. A
// manifest that is not the view's is no error: head_id decides, and the next CatchUp
// will tell.
func (s *Store) Hold(ctx context.Context, tx *pgtx.Tx, v *View, before ...pgtx.Statement) error {
	return s.inBetween(ctx, tx, v, append(slices.Clip(before), s.Lock(v.Log)))
}

// Lock waits for a log and holds it until the transaction ends.
func (s *Store) Lock(log int64) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepLog, SQL: s.sql(`SELECT 1 FROM @schema@.logs WHERE id = $1 FOR NO KEY UPDATE`),
		Params: []pgtx.Param{pgtx.Int8(log)},
	}
}

// Follow is Hold without the lock: the view learns what others have committed up to
// now. Ask it before a record is condemned that met a unique violation: somebody else
// may have applied its other copy meanwhile. The next moment may bring more runs. What
// was learned here is in HeadID, so Append no longer compares it: ask the fold whether
// it was Overtaken first, as behind Hold.
func (s *Store) Follow(ctx context.Context, tx *pgtx.Tx, v *View) error {
	return s.inBetween(ctx, tx, v, nil)
}

// inBetween runs first and then reads, in statements of their own, the log's row and
// the runs behind the view's head: one that waited for the row's lock still sees the
// runs as they were before it waited.
func (s *Store) inBetween(ctx context.Context, tx *pgtx.Tx, v *View, first []pgtx.Statement) error {
	var h head
	var open, moved bool
	l := learner{v: v, next: max(v.Head, 1), last: math.MaxInt64, proven: v.Head == 0}
	from := l.next
	row := pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT state = 'open', generation, head, head_id, sealed FROM @schema@.logs WHERE id = $1`),
		Params: []pgtx.Param{pgtx.Int8(v.Log)},
		Row: func(r pgtx.Row) error {
			err := r.Scan(&open, &h.generation, &h.head, (*[16]byte)(&h.headID), &h.sealed)
			l.last = 0
			if moved = h.headID != v.HeadID; moved {
				l.last = h.head
			}
			if h.sealed > v.Head || h.head < v.Head {
				l.bad = ErrDropView
			}
			return err
		},
	}
	if err := tx.Run(ctx, append(first, row, s.runs(&l))...); err != nil {
		return err
	}
	if !open || !bytes.Equal(h.generation, v.Generation) {
		return logClosed()
	}
	if !moved {
		return nil
	}
	for {
		if err := l.read(from); err != nil {
			return err
		}
		if l.next > l.last {
			return l.end(h.headID)
		}
		from = l.next
		if err := tx.Run(ctx, s.runs(&l)); err != nil {
			return err
		}
	}
}

// logClosed is what append_runs raises; here the answer is read before anything is
// committed, which guards as well.
func logClosed() error {
	return &pgtx.StepError{Step: pgtx.StepLog, Err: &pgconn.PgError{
		Severity: "ERROR", Code: pgtx.CodeLogClosed, Message: "log is closed or of another generation",
	}}
}
