package dedup

import (
	"fmt"

	"effectonce/internal/mutant"
	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// page bounds the bytes of one statement: runs a page × about 160 kB.
const page = 128

// learner has a view learn runs as they are read, one after the other, as long as
// they are proven: contiguous, with their fingerprints, and behind a run at the
// view's head that carries its head_id.
type learner struct {
	v      *View
	next   int64 // the run to be read next
	last   int64 // the run to end at: what was committed later is left alone
	proven bool  // the view is of this log
	bad    error
}

// runs reads the next page. The run at the view's head comes without its
// fingerprints: its name is all that is asked for.
func (s *Store) runs(l *learner) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT seq, run_id, CASE WHEN seq > $4 THEN fingerprints END FROM @schema@.runs
			WHERE log = $1 AND seq >= $2 AND seq <= $3 ORDER BY seq`),
		Params: []pgtx.Param{pgtx.Int8(l.v.Log), pgtx.Int8(l.next), pgtx.Int8(min(l.next+page-1, l.last)), pgtx.Int8(l.v.Head)},
		Row:    l.row,
	}
}

// row takes a run's number, name and fingerprints.
func (l *learner) row(r pgtx.Row) error {
	var seq int64
	var id stream.UUID
	var run []byte
	if err := r.Scan(&seq, (*[16]byte)(&id), &run); err != nil {
		return err
	}
	if l.bad == nil && seq <= l.last {
		l.bad = l.learn(seq, id, run)
	}
	return nil // what is bad is told behind the statement: an error here would end the session
}

func (l *learner) learn(seq int64, id stream.UUID, run []byte) error {
	switch {
	case seq != l.next:
		return fmt.Errorf("%w: run %d is missing", ErrDropView, l.next)
	case seq == l.v.Head:
		if id != l.v.HeadID {
			return fmt.Errorf("%w: run %d is another", ErrDropView, seq)
		}
		l.proven = true
	case run == nil || !l.proven:
		return fmt.Errorf("%w: run %d has no fingerprints", ErrDropView, seq)
	default:
		if mutant.LearnBlind {
			run = nil
		}
		l.v.Learn(id, run)
	}
	l.next++
	return nil
}

// read ends a page that began at from.
func (l *learner) read(from int64) error {
	if l.bad == nil && l.next == from && from <= l.last {
		l.bad = fmt.Errorf("%w: run %d is missing", ErrDropView, from)
	}
	return l.bad
}

// end requires that the last run is the log's head.
func (l *learner) end(headID stream.UUID) error {
	if l.v.HeadID != headID {
		return fmt.Errorf("%w: run %d is not its head", ErrDropView, l.last)
	}
	return nil
}
