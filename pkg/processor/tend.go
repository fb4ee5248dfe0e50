package processor

import (
	"context"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/pkg/dedup"
	"effectonce/pkg/stream"
)

const (
	coldRecords = 1000            // most records in a transaction whose unknown keys are looked up
	keepers     = 2               // views tended at once
	keptFor     = 5 * time.Minute // how long the view of a partition that went away is kept
	keyBytes    = 27              // of memory a key in an exact set takes, growth included
	leastSeal   = 1000            // keys; below, a segment is not worth its row
	mostSeal    = 1_000_000       // keys
)

// kept is the view of a partition that went away: when it comes back, the view
// catches up from its head_id instead of being loaded.
type kept struct {
	view *dedup.View
	end  *time.Timer // drops it
}

// keep remembers a discarded queue's view for a while. One with a batch in flight is
// not kept: the batch may yet append to it.
func (l *list) keep(q *queue) {
	if q.view == nil {
		return
	}
	p, v := q.claim.Partition, q.view
	v.Forget(time.Now())
	if old := l.kept[p]; old.view != nil {
		old.end.Stop()
	}
	l.kept[p] = kept{v, time.AfterFunc(keptFor, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.kept[p].view == v {
			delete(l.kept, p)
		}
	})}
}

// reuse hands out a partition's kept view, nil if there is none.
func (l *list) reuse(p stream.Partition) *dedup.View {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := l.kept[p]
	if k.view != nil {
		k.end.Stop()
		delete(l.kept, p)
	}
	return k.view
}

// sealAt is how many keys an exact set may hold before it is sealed: the memory is
// shared by all views held, so the more scopes, the smaller the seals. Without a
// bound nothing is ever sealed.
func (l *list) sealAt() int64 {
	if l.memory == 0 {
		return math.MaxInt64
	}
	return min(max(l.memory/keyBytes/int64(max(len(l.byName), 1)), leastSeal), mostSeal)
}

// roomForCold reports whether one more committer may work for a view without a
// filter: at most half of them do.
func (l *list) roomForCold() bool {
	n := 0
	for _, q := range l.byName {
		if q.cold && q.phase == inFlight {
			n++
		}
	}
	return n < max(l.committers/2, 1)
}

// landed wakes committers that wait for one less to work for cold queues.
func (l *list) landed(q *queue) {
	if q.cold {
		l.cond.Broadcast()
	}
}

// anyReady reports whether take has something to take.
func (l *list) anyReady() bool {
	return slices.ContainsFunc(l.ready, func(q *queue) bool { return !q.cold }) || len(l.ready) > 0 && l.roomForCold()
}

// tendTo puts a claim's view on the list of those to be worked on.
func (l *list) tendTo(q *queue) {
	if q.tending || q.tired || q.gone || q.view == nil || l.memory == 0 && q.view.Stats().Segments == 0 {
		return
	}
	q.tending = true
	l.tend = append(l.tend, q)
	l.cond.Broadcast()
}

// tending is one view to be worked on.
type tending struct {
	q     *queue
	claim stream.Claim // as it was then
	view  *dedup.View  // nil when it is being loaded again
}

// takeTend waits for a view to be worked on; false when closed. The context ends
// when its claim goes.
func (l *list) takeTend(ctx context.Context) (tending, context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.tend) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return tending{}, ctx, false
	}
	q := l.tend[0]
	l.tend = l.tend[1:]
	life, end := context.WithCancel(ctx)
	q.untend = end
	return tending{q, q.claim, q.view}, life, true
}

// tended ends the work on a view; again puts it back on the list after a wait, and
// not before, whatever commits meanwhile.
func (l *list) tended(t tending, again time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := t.q
	q.untend()
	q.untend, q.tending = nil, false
	q.cold = q.cold && q.view != nil && q.view.Stats().Ready < 1
	l.cond.Broadcast()
	if q.view != nil && q.view != t.view { // loaded again meanwhile: this one was not tended
		l.tendTo(q)
		return
	}
	if again > 0 && q.view == t.view {
		q.tired = true
		time.AfterFunc(again, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			q.tired = false
			l.tendTo(q)
		})
	}
}

// tend works on views in the background until the list is closed: a filter for
// those that have none, sealing, merging, cleaning up. None of it needs the claim.
func (p *Processor) tend(ctx context.Context) error {
	for {
		t, life, ok := p.list.takeTend(ctx)
		if !ok {
			return nil
		}
		var again time.Duration
		if t.view != nil {
			again = p.tendView(life, t)
		}
		p.list.tended(t, again)
	}
}

// tendView does what one view needs, and says when to come back.
func (p *Processor) tendView(ctx context.Context, t tending) (again time.Duration) {
	err := p.withConn(ctx, p.background, func(conn *pgxpool.Conn) error {
		k := keeper{p, t.claim, t.view, conn}
		for _, step := range []func(context.Context) error{k.filter, k.seal, k.merge, k.clean, k.prune, k.whole} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil, ctx.Err() != nil:
		return 0
	case errors.Is(err, dedup.ErrDropView): // somebody else changed the log
		p.list.suspectLog(t.q)
	}
	p.about(t.claim).Warn().Err(err).Msg("view not tended, trying again")
	return backoff(8)
}

// keeper does the steps of one tending.
type keeper struct {
	p     *Processor
	claim stream.Claim
	v     *dedup.View
	conn  *pgxpool.Conn
}

func (k keeper) filter(ctx context.Context) error {
	if !k.v.Stats().Rebuild {
		return nil
	}
	start, told := time.Now(), time.Now()
	err := k.p.log.Rebuild(ctx, k.conn.Conn(), k.p.settings, k.v, func(done, total int64) {
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			k.p.about(k.claim).Info().Int64("keys", done).Int64("of", total).Msg("filter is being rebuilt")
		}
	})
	if err != nil {
		return err
	}
	k.p.metrics.rebuilds.Observe(time.Since(start).Seconds())
	k.p.about(k.claim).Info().Int64("keys", k.v.Stats().Sealed).Dur("took", time.Since(start)).Msg("filter ready")
	return nil
}

func (k keeper) seal(ctx context.Context) error {
	k.p.list.mu.Lock()
	at := k.p.list.sealAt()
	k.p.list.mu.Unlock()
	if int64(k.v.Keys()) < at {
		return nil
	}
	start := time.Now()
	keys, err := k.p.log.Seal(ctx, k.conn.Conn(), k.p.settings, k.v)
	if err == nil && keys > 0 {
		k.p.metrics.seals.WithLabelValues("seal").Observe(time.Since(start).Seconds())
		k.p.about(k.claim).Debug().Int64("keys", keys).Dur("took", time.Since(start)).Msg("sealed")
	}
	return err
}

func (k keeper) merge(ctx context.Context) error {
	for {
		start := time.Now()
		n, err := k.p.log.Compact(ctx, k.conn.Conn(), k.p.settings, k.v, nil)
		if err != nil || n == 0 {
			return err
		}
		k.p.metrics.seals.WithLabelValues("compact").Observe(time.Since(start).Seconds())
	}
}

func (k keeper) clean(ctx context.Context) error {
	return untilNone(func() (int64, error) { return k.p.log.Clean(ctx, k.conn.Conn(), k.p.settings, k.v.Log) })
}

func (k keeper) prune(ctx context.Context) error {
	return untilNone(func() (int64, error) {
		return k.p.log.Prune(ctx, k.conn.Conn(), k.p.settings, k.v.Log, k.p.cfg.AuditRetention)
	})
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

// sweep removes what killed builders left behind, of any claim.
func (p *Processor) sweep(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		err := p.withConn(ctx, p.background, func(conn *pgxpool.Conn) error {
			return untilNone(func() (int64, error) { return p.log.Sweep(ctx, conn.Conn(), p.settings, abandoned) })
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
