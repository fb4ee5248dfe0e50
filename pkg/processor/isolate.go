package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// isolation finds the records of one part whose effect fails. It applies them in
// record order inside savepoints, halving what fails; a record that fails alone is
// dead, and its next copy takes its place because the fold is asked anew for every
// range. All others apply, in the same transaction.
type isolation struct {
	c     *committer
	p     *part
	w     *work // it alone
	tx    *pgtx.Tx
	xact  string
	done  [][]int // what was applied so far, to apply again on another connection
	limit int     // most records in one attempt once a session was lost; 0 is no limit
}

// poisoned says that too many effects in a row failed alone: the set-up's fault.
type poisoned struct {
	err         error
	first, last int64 // the offsets they stand at
}

func (e *poisoned) Error() string { return e.err.Error() }

// isolate runs one part in isolation mode and acts on the outcome.
func (c *committer) isolate(ctx context.Context, p *part) {
	poison, blamed, start := p.q.blame.poison, p.q.blame.blamed, time.Now()
	w := of([]*part{p})
	err := c.tryIsolate(ctx, w)
	flood, flooded := errors.AsType[*poisoned](err)
	switch {
	case err == nil:
		c.committed(w, time.Since(start))
	case flooded: // no dead letter of this batch is written
		p.q.blame.poison, p.q.blame.blamed = poison, blamed
		c.halt(p, rebalance.Cause{
			Code: "poison_flood", Fix: "mend the table or the mapping, then restart this member",
			Text: fmt.Sprintf("%d effects in a row failed alone, from offset %d to %d, and none was applied between; the last: %v",
				c.p.cfg.StopAfter, flood.first, flood.last, flood.err),
		})
	default:
		p.q.blame.poison, p.q.blame.blamed = poison, blamed
		c.failedIsolation(ctx, w, err)
	}
}

// failedIsolation judges an error that no record was found guilty of. One that
// would isolate again is the moment's: the batch is tried again as it is.
func (c *committer) failedIsolation(ctx context.Context, w *work, err error) {
	if accuses(verdict(stepOf(err), err)) {
		w.late(ctx)
		w.parts[0].q.blame.tries++
		c.again(w, backoff(w.parts[0].q.blame.tries))
		return
	}
	c.failed(ctx, w, err)
}

func (c *committer) tryIsolate(ctx context.Context, w *work) error {
	conn, err := c.p.commits.Acquire(ctx)
	if err != nil {
		return &pgtx.StepError{Step: pgtx.StepBegin, Err: err}
	}
	defer func() { conn.Release() }()
	clear(c.applied)
	p := w.parts[0]
	s := &isolation{c: c, p: p, w: w}
	for {
		if s.tx, err = pgtx.Begin(ctx, conn.Conn(), c.p.settings, c.fence(w, &s.xact)); err != nil {
			return err
		}
		err = s.replay(ctx)
		if err == nil {
			err = s.search(ctx, p.lo, p.hi)
		}
		if !errors.Is(err, errSessionLost) {
			break
		}
		// The effect's time limit took the session with it. What was decided stands;
		// go on with another.
		conn.Release()
		if conn, err = c.p.commits.Acquire(ctx); err != nil {
			return &pgtx.StepError{Step: pgtx.StepBegin, Err: err}
		}
	}
	if err != nil {
		s.tx.Rollback(ctx)
		return err
	}
	return c.conclude(ctx, s.tx, w, s.xact)
}

var errSessionLost = errors.New("the session was lost during isolation")

// replay applies again what was applied before the session was lost, in the same
// pieces: each kept within the time limit, all together may not.
func (s *isolation) replay(ctx context.Context) error {
	for _, picks := range s.done {
		if err := s.apply(ctx, picks); err != nil {
			return err
		}
	}
	return nil
}

// search applies the records of [lo, hi) that are alive and not applied yet.
func (s *isolation) search(ctx context.Context, lo, hi int) error {
	c := s.c
	picks := s.p.log.fold.Winners(nil, lo, hi,
		func(i int) bool { return c.dead[i] || c.batch.Skip[i] },
		func(i int) bool { return c.applied[i] })
	if len(picks) == 0 {
		return nil
	}
	if s.limit > 0 && len(picks) > s.limit {
		return s.halves(ctx, lo, picks[s.limit], hi)
	}
	err := s.attempt(ctx, picks)
	if err == nil {
		for _, i := range picks {
			c.applied[i] = true
		}
		s.done = append(s.done, picks)
		s.p.q.blame.poison = 0
		return nil
	}
	if !s.accused(err) {
		return err
	}
	if len(picks) > 1 {
		if s.lost() {
			s.limit = len(picks) / 2
			return errSessionLost
		}
		return s.halves(ctx, lo, s.split(picks, err), hi)
	}
	if err := s.overtaken(ctx); err != nil {
		return err
	}
	if err := s.condemn(picks[0], err); err != nil {
		return err
	}
	if s.lost() {
		return errSessionLost
	}
	return s.search(ctx, picks[0]+1, hi) // its copies behind it
}

func (s *isolation) halves(ctx context.Context, lo, mid, hi int) error {
	if err := s.search(ctx, lo, mid); err != nil {
		return err
	}
	return s.search(ctx, mid, hi)
}

// overtaken asks, before a record is condemned, whether its other copy was applied
// by another member meanwhile. A session that is lost cannot ask: the log's lock at
// the end does.
func (s *isolation) overtaken(ctx context.Context) error {
	log := s.w.shared()
	if log == nil || s.lost() {
		return nil
	}
	if err := s.c.p.log.Follow(ctx, s.tx, log.scope.view); err != nil {
		return err
	}
	if log.fold.Overtaken(func(int) bool { return true }) {
		return errOvertaken
	}
	return nil
}

func (s *isolation) lost() bool { return s.tx.Conn().IsClosed() }

// split chooses where to divide the picks: at the row that COPY's context names,
// else in the middle. The hint is verified by what happens next.
func (s *isolation) split(picks []int, err error) int {
	if line := copyLine(err); line > 0 && line <= len(picks) {
		if line > 1 {
			return picks[line-1] // everything before it
		}
		return picks[1]
	}
	return picks[len(picks)/2]
}

// attempt applies picks behind a savepoint and undoes them if they fail.
func (s *isolation) attempt(ctx context.Context, picks []int) error {
	if err := s.tx.Run(ctx, savepoint); err != nil {
		return err
	}
	err := s.apply(ctx, picks)
	if err == nil {
		return s.tx.Run(ctx, release)
	}
	if s.lost() {
		return err
	}
	if undo := s.tx.Run(ctx, rollbackTo); undo != nil {
		return undo
	}
	return err
}

func (s *isolation) apply(ctx context.Context, picks []int) error {
	faults, err := s.c.p.sink.Apply(ctx, s.tx, &s.c.batch, picks)
	if err == nil && len(faults) > 0 {
		return &pgtx.StepError{Step: pgtx.StepEffect, Err: &refused{faults}}
	}
	if err == nil {
		err = s.tx.Run(ctx, setConstraints)
	}
	return err
}

// refused carries the faults that a handler named itself.
type refused struct{ faults []stream.Fault }

func (e *refused) Error() string { return e.faults[0].Error() }

// accused reports whether the error may be a record's fault. A refused row and a
// missing right were told apart before isolation began.
func (s *isolation) accused(err error) bool {
	if _, ok := errors.AsType[*refused](err); ok {
		return true
	}
	return accuses(verdict(stepOf(err), err))
}

// accuses reports whether a verdict may be against a record.
func accuses(v Verdict) bool { return v == Isolate || v == Suspect || v == Privilege }

// condemn makes a dead letter of a record that failed alone.
func (s *isolation) condemn(i int, err error) error {
	if own, ok := errors.AsType[*refused](err); ok {
		s.c.bury(own.faults[0])
		return nil
	}
	blame, at := &s.p.q.blame, s.c.batch.Records[i].Offset
	if blame.poison == 0 {
		blame.blamed = at
	}
	if blame.poison++; blame.poison >= s.c.p.cfg.StopAfter {
		return &poisoned{err, blame.blamed, at}
	}
	s.c.bury(effectFault(i, err))
	return nil
}

var (
	savepoint  = pgtx.Statement{Step: pgtx.StepBegin, SQL: "SAVEPOINT effectonce_isolate"}
	release    = pgtx.Statement{Step: pgtx.StepEffect, SQL: "RELEASE SAVEPOINT effectonce_isolate"}
	rollbackTo = pgtx.Statement{Step: pgtx.StepBegin, SQL: "ROLLBACK TO SAVEPOINT effectonce_isolate"}
)
