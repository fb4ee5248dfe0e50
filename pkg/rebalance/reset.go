package rebalance

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/pkg/stream"
)

// A group offset without our metadata was moved from outside. What becomes of it is
// decided once: then it gets our metadata, before the partition is opened. Opened
// first, it would be decided about again:
//
//	the group's offset is 40 from outside, the position 100; 40 is honoured
//	records up to 90 are applied, the member is killed before its next commit to Kafka
//	the next one finds 40 from outside and the position at 90: back to 40 it goes
//
// and so on, as often as it is killed in time. A partition that is idle would never
// get our metadata at all, and be judged at each takeover.
//
// All of this is done in the background, since no callback waits.

// foreignCause is why a partition waits whose group offset is not ours yet.
func foreignCause(m mirror) Cause {
	return Cause{Code: "foreign_offset", Text: fmt.Sprintf("the group's offset %d is not ours: it is decided about, and becomes ours, before anything is applied", m.offset)}
}

// agrees reports whether the partition of a claim just made may be opened as far as
// the mirror is concerned; if not, it was stopped, or is taken over again when the
// mirror is ours. A claim that was given up was open before: what the group has
// committed since is not known here, and that the database went back may be the reason
// to be here. Where somebody has decided about the position, who has seen the group's
// offset, it is not judged again.
func (g *Group) agrees(ctx context.Context, h *Held, a found) bool {
	claim := a.Claim
	g.mu.Lock()
	retakes, resolved := h.retakes, h.resolved
	g.mu.Unlock()
	if retakes > 0 {
		return true
	}
	m := g.mirrored(h.Name)
	if m.foreign() { // as of the assignment: the partition may have waited long since
		now, err := g.mirrorNow(ctx, h.Name)
		if err != nil {
			g.postpone(h, slowPace)
			g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
			return false
		}
		if m = now; !m.foreign() { // ours by now: judged by what is known of ours
			g.postpone(h, 0)
			return false
		}
	}
	if cause, stop := m.ahead(h.Name, a); stop && !resolved {
		g.stop(h, claim.Owner, cause, &claim)
		return false
	}
	if !m.foreign() {
		return true
	}
	if m.offset != claim.Next && !resolved && !g.decide(ctx, h, claim, m.offset) {
		return false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if h.State == Waiting && h.Claim.Owner == claim.Owner {
		h.Claim, h.unstamped, h.due = claim, true, time.Now().Add(time.Hour) // due when it is ours
		g.pokeStamps()
	}
	return false
}

// decide applies the policy to an offset that was moved from outside. It reports
// whether to go on at the position.
func (g *Group) decide(ctx context.Context, h *Held, claim stream.Claim, to int64) bool {
	if g.cfg.OnReset == "honour" {
		g.honour(ctx, h, claim, to)
		return false
	}
	c := Cause{
		Code: "external_reset",
		Text: fmt.Sprintf("the group's offset was moved to %d from outside, Postgres is at %d", to, claim.Next),
		Fix:  "positions live in Postgres; the group's offset is only shown to lag tools",
	}
	if g.cfg.OnReset == "fail" {
		c.Fix = goesOn(h.Name, claim.Next)
		g.stop(h, claim.Owner, c, &claim)
		return false
	}
	g.mu.Lock()
	told := h.told
	h.told = true
	g.mu.Unlock()
	if !told {
		g.board.Tell(Event{Kind: "external_reset", Name: h.Name, Claim: claim, Cause: c})
	}
	return true
}

// goesOn is the command that has a partition go on from Postgres.
func goesOn(n Name, next int64) string {
	return fmt.Sprintf("processor partitions resolve %s --rewind-to %d goes on from Postgres", n, next)
}

// mirrorNow asks Kafka for the group's offset as it is now, and keeps it.
func (g *Group) mirrorNow(ctx context.Context, n Name) (mirror, error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	m, err := askMirror(ctx, kadm.NewClient(g.kafka()), g.cfg.Pipeline, g.cfg.Group, n)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.mirrors[n] = m
	}
	return m, err
}
