package processor

import (
	"context"
	"slices"
	"time"

	"effectonce/pkg/stream"
)

// A partition that the group took away has no owner until the group has given it to
// another member and that one has taken it over: with a classic protocol, two rounds
// of heartbeats. Its queue parts: it goes on with what was polled, alone in its
// transactions, until the next owner's takeover shows at the fence, until it is empty,
// or until it fails. The claim stands in Postgres all the while, so this is as exact
// as before; a commit behind the takeover is refused as any stale one.

// part lets the queue of a claim part. It never waits.
func (p *Processor) part(owner stream.UUID) { p.list.part(owner, p.cfg.Rebalance) }

// partingTime is how long queues part when the process ends.
const partingTime = 3 * time.Second

// part takes no more records for a claim, and gives up what is left of its queue
// behind limit. A queue that has failed, or that is not running yet, is dropped.
func (l *list) part(owner stream.UUID, limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.byName {
		if q.claim.Owner != owner {
			continue
		}
		if q.phase == resting || q.scope.loading || q.phase != inFlight && len(q.recs) == 0 {
			l.discard(q)
			return
		}
		delete(l.byName, q.name)
		q.parting = true
		l.parting = append(l.parting, q)
		if q.phase == lingering {
			l.makeReady(q)
		}
		time.AfterFunc(limit, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.discard(q)
		})
		return
	}
}

// handedOver ends a queue whose parting the fence ended, as it should. It reports
// whether the part's queue is parting.
func (c *committer) handedOver(p *part) bool {
	c.p.list.mu.Lock()
	parting := p.q.parting
	c.p.list.mu.Unlock()
	if parting {
		c.p.say(p.q).Info().Msg("handed over")
		c.p.list.release(p)
	}
	return parting
}

// still waits until nothing is in flight, at most for limit, and has nothing taken
// until it is resumed.
func (l *list) still(limit time.Duration) (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.paused = true
	l.await(limit, func() bool {
		for _, s := range l.scopes {
			if s.parts > 0 {
				return false
			}
		}
		return true
	})
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.paused = false
		l.cond.Broadcast()
	}
}

// parted waits until no queue is parting, at most for limit.
func (l *list) parted(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.await(limit, func() bool { return len(l.parting) == 0 })
}

// await waits for what a broadcast tells, at most for limit. The mutex is held.
func (l *list) await(limit time.Duration, done func() bool) {
	over := false
	timer := time.AfterFunc(limit, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		over = true
		l.cond.Broadcast()
	})
	defer timer.Stop()
	for !done() && !over {
		l.cond.Wait()
	}
}

// forget forgets a queue that parts no more.
func (l *list) forget(q *queue) {
	if q.parting {
		l.parting = slices.DeleteFunc(l.parting, func(x *queue) bool { return x == q })
		l.cond.Broadcast()
	}
}

// leave ends the membership. What is in flight lands first, so that the mirror tells
// of it; behind that the others may take over, and the queues part. ctx may be over.
func (p *Processor) leave(ctx context.Context) {
	if p.client == nil || p.left {
		return
	}
	p.left = true
	resume := p.list.still(leaving)
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaving)
	defer cancel()
	if err := p.group.Leave(limited); err != nil {
		p.logger.Warn().Err(err).Msg("the group's offset stays behind the position, until the next member commits")
	}
	resume()
	p.client.CloseAllowingRebalance()
	p.list.parted(partingTime)
}
