package processor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
)

const (
	coldRecords = 1000 // most records in a transaction whose unknown keys are looked up
	keepers     = 2    // views tended at once
	busyWait    = 5 * time.Second
)

// tendTo puts a scope's view on the list of those to be worked on.
func (l *list) tendTo(s *scope) {
	if s.tending || s.tired || s.closed || s.loading || l.memory == 0 && !l.ages && s.view.Stats().Segments == 0 {
		return
	}
	s.tending = true
	l.tend = append(l.tend, s)
	l.cond.Broadcast()
}

// tending is one view to be worked on.
type tending struct {
	scope *scope
	view  *dedup.View // nil when it is being loaded again
}

// takeTend waits for a view to be worked on; false when closed. life ends when the
// scope goes, and work also when another view takes this one's place.
func (l *list) takeTend(ctx context.Context) (t tending, life, work context.Context, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.tend) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return tending{}, ctx, ctx, false
	}
	s := l.tend[0]
	l.tend = l.tend[1:]
	life, s.end = context.WithCancel(ctx)
	work, s.untend = context.WithCancel(life)
	if s.loading {
		return tending{s, nil}, life, work, true
	}
	return tending{s, s.view}, life, work, true
}

// tended ends the work on a view; again puts it back on the list after a wait, and
// not before, whatever commits meanwhile.
func (l *list) tended(t tending, again time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := t.scope
	s.end()
	s.untend, s.end, s.tending = nil, nil, false
	if s.loading { // it is tended when it is loaded
		return
	}
	s.cold = s.cold && s.view.Stats().Ready < 1
	l.cond.Broadcast()
	switch {
	case s.view != t.view, s.cold && again == 0: // loaded again or cut short: not tended yet
		l.tendTo(s)
	case again > 0:
		s.tired = true
		time.AfterFunc(again, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			s.tired = false
			l.tendTo(s)
		})
	}
}

// tend works on views in the background until the list is closed: a filter for
// those that have none, sealing, merging, cleaning up. None of it needs the claim.
func (p *Processor) tend(ctx context.Context) error {
	for {
		t, life, work, ok := p.list.takeTend(ctx)
		if !ok {
			return nil
		}
		var again time.Duration
		if t.view != nil {
			again = p.tendView(life, work, t)
		}
		p.list.tended(t, again)
	}
}

// tendView does what one view needs, and says when to come back. A filter is made to
// its end even if the view is loaded again meanwhile, which takes it over: where other
// members seal often, no rebuild would ever be done otherwise. Everything else would
// make the new view one of other segments.
func (p *Processor) tendView(life, work context.Context, t tending) (again time.Duration) {
	err := p.withConn(life, p.background, func(conn *pgxpool.Conn) error {
		k := keeper{p, t.scope, t.view, conn}
		if err := k.filter(life); err != nil {
			return err
		}
		for _, step := range []func(context.Context) error{k.seal, k.expire, k.merge, k.clean, k.whole, k.offer} {
			if err := step(work); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil, work.Err() != nil:
		return 0
	case errors.Is(err, dedup.ErrBusy): // another member is at it
		return busyWait
	case errors.Is(err, dedup.ErrDamaged):
		p.stopScope(t.scope, damaged(err))
		return 0
	case errors.Is(err, dedup.ErrDropView): // somebody else changed the log
		p.list.suspectLog(t.scope)
	}
	p.aboutScope(t.scope).Warn().Err(err).Msg("view not tended, trying again")
	return backoff(8)
}

// damaged is the cause of a log whose segments are not what they were written as.
func damaged(err error) rebalance.Cause {
	return rebalance.Cause{
		Code: "damaged_log", Text: err.Error(),
		Fix: "keys are missing from the dedup store: run processor dedup check, and restore its tables together with the positions and the effects",
	}
}

// keeper does the steps of one tending.
type keeper struct {
	p     *Processor
	scope *scope
	v     *dedup.View
	conn  *pgxpool.Conn
}

func (k keeper) filter(ctx context.Context) error {
	if !k.v.Stats().Rebuild {
		return nil
	}
	k.v.Bound(k.p.list.gateRoom(k.v))
	start, told := time.Now(), time.Now()
	err := k.p.log.Rebuild(ctx, k.conn.Conn(), k.p.settings, k.v, func(done, total int64) {
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			k.p.aboutScope(k.scope).Info().Int64("keys", done).Int64("of", total).Msg("filter is being rebuilt")
		}
	})
	if err != nil {
		return err
	}
	k.p.metrics.rebuilds.Observe(time.Since(start).Seconds())
	s := k.v.Stats()
	k.p.aboutScope(k.scope).Info().Int64("keys", s.Sealed).Dur("took", time.Since(start)).Msg("filter ready")
	if s.Rate > poorRate {
		k.p.aboutScope(k.scope).Warn().Int64("keys", s.Sealed).Float64("false_positives", s.Rate).
			Msg("dedup.memory is short: more new keys than need be are looked up in Postgres; four bytes a key would do")
	}
	return nil
}

func (k keeper) seal(ctx context.Context) error {
	k.p.list.mu.Lock()
	at := k.p.list.sealAt()
	k.p.list.mu.Unlock()
	if int64(k.v.Keys()) < at {
		return nil
	}
	return k.sealNow(ctx)
}

func (k keeper) sealNow(ctx context.Context) error {
	start := time.Now()
	keys, err := k.p.log.Seal(ctx, k.conn.Conn(), k.p.settings, k.v)
	if err == nil && keys > 0 {
		k.p.metrics.seals.WithLabelValues("seal").Observe(time.Since(start).Seconds())
		k.p.aboutScope(k.scope).Debug().Int64("keys", keys).Dur("took", time.Since(start)).Msg("sealed")
	}
	return err
}

func (k keeper) merge(ctx context.Context) error {
	for {
		start := time.Now()
		n, err := k.p.log.Compact(ctx, k.conn.Conn(), k.p.settings, k.v, dedup.Windows(k.p.cfg.DedupRetention))
		if err != nil || n == 0 {
			return err
		}
		k.p.metrics.seals.WithLabelValues("compact").Observe(time.Since(start).Seconds())
	}
}

func (k keeper) clean(ctx context.Context) error {
	return k.p.clean(ctx, k.conn.Conn(), k.v.Log)
}

// clean removes what a log needs no more, and audit rows that are old enough.
func (p *Processor) clean(ctx context.Context, conn *pgx.Conn, log int64) error {
	err := untilNone(func() (int64, error) { return p.log.Clean(ctx, conn, p.settings, log) })
	if err != nil {
		return err
	}
	return untilNone(func() (int64, error) { return p.log.Prune(ctx, conn, p.settings, log, p.cfg.AuditRetention) })
}

// untilNone repeats a step that removes some rows until none is left.
func untilNone(step func() (int64, error)) error {
	for {
		if n, err := step(); err != nil || n == 0 {
			return err
		}
	}
}

const (
	sweepEvery = 10 * time.Minute
	abandoned  = time.Hour // a segment building for longer was given up by its builder
)

// sweep removes what killed builders left behind, of any claim, and what closed logs
// hold that nobody needs.
func (p *Processor) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		err := p.withConn(ctx, p.background, func(conn *pgxpool.Conn) error {
			return p.sweepOnce(ctx, conn.Conn())
		})
		if err != nil && ctx.Err() == nil {
			p.logger.Warn().Err(err).Msg("leftovers of sealing not swept, trying again later")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *Processor) sweepOnce(ctx context.Context, conn *pgx.Conn) error {
	err := untilNone(func() (int64, error) { return p.log.Sweep(ctx, conn, p.settings, abandoned) })
	if err != nil {
		return err
	}
	closed, err := p.log.Closed(ctx, conn, p.settings, p.pipeline.ID)
	for _, log := range closed {
		if err == nil {
			err = p.clean(ctx, conn, log)
		}
	}
	return err
}
