package processor

import (
	"context"
	"slices"
	"time"

	"effectonce/pkg/stream"
)

// A partition that the group took away has no other owner until the group has given it
// to a member and that one has taken it over: with a classic protocol, two rounds of
// heartbeats. Its queue is outgoing meanwhile: what was polled is committed, alone in
// its transactions, until the next owner's takeover shows at the fence, until the queue
// is empty, or until something fails. The claim stands in Postgres all the while, so
// this is as exact as before; a commit behind the takeover is refused as any stale one.

// handOver makes the queue of a claim outgoing. It never waits.
func (p *Processor) handOver(owner stream.UUID) { p.list.handOver(owner, p.cfg.Rebalance) }

// handOver takes no more records for a claim, and gives up what is left of its queue
// behind limit. A queue that has failed, that is not running yet or that is empty is
// dropped.
func (l *list) handOver(owner stream.UUID, limit time.Duration) {
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
		l.outgoing = append(l.outgoing, q)
		q.outgoing = time.AfterFunc(limit, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.discard(q)
		})
		if q.phase == lingering {
			l.makeReady(q)
		}
		return
	}
}

// handedOver ends an outgoing queue that the fence refused, as it should. It reports
// whether the part is of one.
func (c *committer) handedOver(p *part) bool {
	l := c.p.list
	l.mu.Lock()
	outgoing := p.q.outgoing != nil
	l.mu.Unlock()
	if outgoing {
		c.p.metrics.handedOver()
		c.p.say(p.q).Info().Msg("handed over")
		l.release(p)
	}
	return outgoing
}

// giveUp discards outgoing queues; the mutex is held.
func (l *list) giveUp(which func(*queue) bool) {
	for _, q := range slices.Clone(l.outgoing) {
		if which(q) {
			l.discard(q)
		}
	}
}

// forget forgets an outgoing queue that was discarded.
func (l *list) forget(q *queue) {
	if q.outgoing != nil {
		q.outgoing.Stop()
		l.outgoing = slices.DeleteFunc(l.outgoing, func(x *queue) bool { return x == q })
		l.cond.Broadcast()
	}
}

// leave ends the membership. What is in flight lands first, so that the mirror tells
// of it; behind that the others may take over. Work goes on all the while, until they
// do or handOverTime is over. ctx may be over.
func (p *Processor) leave(ctx context.Context) {
	if p.client == nil || p.left {
		return
	}
	p.left = true
	ctx, end := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.DrainTime)
	defer end()
	p.list.landed(min(leaving, p.cfg.DrainTime))
	limited, cancel := context.WithTimeout(ctx, leaving)
	defer cancel()
	if err := p.group.Leave(limited); err != nil {
		p.logger.Warn().Err(err).Msg("the group's offset stays behind the position, until the next member commits")
	}
	p.group.Close(ctx, p.client)
	p.list.handed(handOverTime)
}

// handOverTime is how long a shutdown goes on with outgoing queues.
const handOverTime = 3 * time.Second

// landed waits until what is in flight now has landed, at most for limit.
func (l *list) landed(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	due := map[*scope]int{}
	for _, s := range l.scopes {
		due[s] = s.landings + s.parts
	}
	l.await(limit, func() bool {
		for s, n := range due {
			if s.landings < n {
				return false
			}
		}
		return true
	})
}

// handed waits until no queue is outgoing, and gives up those that are behind limit.
func (l *list) handed(limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.await(limit, func() bool { return len(l.outgoing) == 0 })
	l.giveUp(func(*queue) bool { return true })
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
