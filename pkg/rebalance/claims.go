package rebalance

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// move changes a held partition's state if it is still the one this caller saw.
func (g *Group) move(h *Held, from, to State, claim stream.Claim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held[h.Name] != h || h.State != from || h.Claim.Owner != claim.Owner {
		return false
	}
	h.Claim = claim
	h.set(to, Cause{}, time.Now())
	if to == Running {
		g.ran[claim.Partition] = claim
		g.notice()
	}
	return true
}

// wait puts a partition into the background. One that was stopped or dropped
// meanwhile stays so.
func (g *Group) wait(h *Held, c Cause, in time.Duration) {
	g.mu.Lock()
	ok := g.held[h.Name] == h && h.State != Stopped
	if ok {
		now := time.Now()
		h.set(Waiting, c, now)
		h.due = now.Add(in)
	}
	claim := h.Claim
	g.mu.Unlock()
	if ok {
		g.board.Tell(Event{Kind: "waiting", Name: h.Name, Claim: claim, Cause: c})
		g.poke()
	}
}

// stop stops a partition visibly: paused, without a queue. It acts only while the
// claim of this owner is the one held: what is known of an older claim says nothing
// about the next. found, if any, is what the claim is now known to be.
func (g *Group) stop(h *Held, owner stream.UUID, c Cause, found *stream.Claim) {
	g.mu.Lock()
	if g.held[h.Name] != h || h.Claim.Owner != owner {
		g.mu.Unlock()
		return
	}
	again := h.State == Stopped
	if found != nil {
		h.Claim = *found
	}
	claim := h.Claim
	if !again {
		h.set(Stopped, c, time.Now())
		h.written, h.vague = Cause{}, c.Code == outside || c.Code == Truncated
	}
	g.pause(h.Name)
	g.mu.Unlock()
	if !again {
		g.board.Drop(owner)
		g.board.Tell(Event{Kind: "stopped", Name: h.Name, Claim: claim, Cause: c})
		g.notice()
	}
}

// pause holds the mutex with whoever saw that the claim is held: behind a revoke it
// would pause the next assignment, which nobody resumes.
func (g *Group) pause(n Name) {
	if g.client != nil {
		g.client.PauseFetchPartitions(map[string][]int32{n.Topic: {n.Number}})
	}
}

// Resume has a partition fetched again if it runs.
func (g *Group) Resume(n Name) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.held[n]; h != nil && h.State == Running && g.client != nil {
		g.client.ResumeFetchPartitions(map[string][]int32{n.Topic: {n.Number}})
	}
}

func (g *Group) kafka() *kgo.Client {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.client
}

func (g *Group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// byOwner finds a claim that is still held; nil when it was dropped or replaced.
func (g *Group) byOwner(owner stream.UUID) *Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.Claim.Owner == owner {
			return h
		}
	}
	return nil
}

// Stop stops the partition of this claim, as it stands now, visibly. A claim that is
// not held any more is left alone.
func (g *Group) Stop(claim stream.Claim, c Cause) {
	if h := g.byOwner(claim.Owner); h != nil {
		g.stop(h, claim.Owner, c, &claim)
	}
}

// Fenced gives up a claim that Postgres refused. If the assignment still stands
// the partition is taken over again under a new owner, after exponential waits, and
// not before the group has answered a heartbeat: a member that is cut off from Kafka
// keeps its assignment for ever, and would fence the true owner again and again.
// atOnce skips the first wait: the database went back and nobody else is known to
// hold the row.
func (g *Group) Fenced(ctx context.Context, owner stream.UUID, atOnce bool) {
	h, claim, n := g.giveUp(owner)
	if h == nil {
		return
	}
	g.board.Drop(owner)
	g.board.Tell(Event{Kind: "fenced", Name: h.Name, Claim: claim})
	if n > maxRetakes {
		g.stop(h, claim.Owner, Cause{
			Code: "held_elsewhere", Text: "fenced again and again though the assignment stands; held by " + g.holderOf(ctx, claim.Partition),
			Fix: "end the other process, then restart this member",
		}, nil)
		return
	}
	backoff := g.cfg.Heartbeat << (n - 1)
	if atOnce && n == 1 {
		backoff = 0
	} else {
		g.mu.Lock()
		h.proof = h.Since
		g.mu.Unlock()
	}
	g.wait(h, Cause{Code: "fenced", Text: "another claim was made; taking over again once the group says that the assignment stands"}, backoff)
}

// giveUp replaces the owner of a running claim and counts how often that happened.
// The committer and the watch may both find a claim stale: only the first gives it
// up. A partition that was stopped stays so. When it is due the caller says.
func (g *Group) giveUp(owner stream.UUID) (*Held, stream.Claim, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.Claim.Owner != owner || h.State != Running {
			continue
		}
		now := time.Now()
		if now.Sub(h.Since) > calm {
			h.retakes = 0
		}
		h.retakes++
		h.Claim.Owner = newOwner()
		h.set(Waiting, Cause{Code: "fenced"}, now)
		h.due = now.Add(time.Hour)
		g.pause(h.Name)
		return h, h.Claim, h.retakes
	}
	return nil, stream.Claim{}, 0
}

// holderOf asks who wrote the row last; an answer that does not come is said so.
func (g *Group) holderOf(ctx context.Context, p stream.Partition) string {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	holder := "an unknown process"
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return holder
	}
	defer conn.Release()
	_ = pgtx.Once(ctx, conn.Conn(), pgtx.DefaultSettings, // without an answer the holder stays unknown
		g.cfg.Offsets.Read(g.cfg.ID, []stream.Partition{p}, false, func(r offsets.Row) { holder = r.Holder }))
	return holder
}

// Held returns a copy of what is held, ordered by topic and number.
func (g *Group) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Held, 0, len(g.held))
	for _, h := range g.held {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b Held) int { return a.Claim.Partition.Compare(b.Claim.Partition) })
	return out
}
