package rebalance

import (
	"context"
	"fmt"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// lookEvery is how often the rows of stopped partitions are looked at: somebody may
// have decided about them.
const lookEvery = 3 * time.Second

// attend looks after the partitions that stand still, until ctx ends: it finds out
// what exactly is lost, decides where a policy says so, writes down what stopped and
// what runs again, and takes over again what somebody has decided about. What fails is
// tried again.
func (g *Group) attend(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.still:
		case <-tick.C:
		}
		for _, h := range g.vague() {
			if err := g.face(ctx, h); err != nil && ctx.Err() == nil {
				g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
				break // who does not answer for one may not for the others either
			}
		}
		if err := g.look(ctx); err != nil && ctx.Err() == nil {
			g.board.Tell(Event{Kind: "retry", Err: fmt.Errorf("stopped partitions: %w", err)})
		}
	}
}

// look writes down what is new about the partitions that stand still, and then reads
// what became of them, in one round trip.
func (g *Group) look(ctx context.Context) error {
	stopped, stops, ran := g.standing()
	if len(stopped)+len(ran) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	looked := map[stream.Partition]offsets.Look{}
	if err := pgtx.Once(ctx, conn.Conn(), brief(),
		g.cfg.Offsets.Runs(g.cfg.ID, ran),
		g.cfg.Offsets.Stopped(g.cfg.ID, g.cfg.Holder, stops),
		g.cfg.Offsets.Looks(g.cfg.ID, stopped, func(p stream.Partition, l offsets.Look) { looked[p] = l }),
	); err != nil {
		return err
	}
	g.looked(stops, ran, looked)
	return nil
}

// standing returns the claims that stand still, what of it is not written down yet,
// and the claims that have begun to run.
func (g *Group) standing() (stopped []stream.Claim, stops []offsets.Stop, ran []stream.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.State != Stopped {
			continue
		}
		stopped = append(stopped, h.Claim)
		if h.written != h.Cause {
			stops = append(stops, offsets.Stop{
				Claim: h.Claim, Code: h.Cause.Code, Text: h.Cause.Text, Fix: h.Cause.Fix, Unclaimed: h.unclaimed(),
			})
		}
	}
	for _, c := range g.ran {
		ran = append(ran, c)
	}
	return stopped, stops, ran
}

// looked notes what is written down, and takes over again what was decided about.
func (g *Group) looked(stops []offsets.Stop, ran []stream.Claim, looks map[stream.Partition]offsets.Look) {
	g.mu.Lock()
	for _, c := range ran {
		if g.ran[c.Partition].Owner == c.Owner {
			delete(g.ran, c.Partition)
		}
	}
	var again []*Held
	for _, h := range g.held {
		l, ok := looks[h.Claim.Partition]
		if !ok || h.State != Stopped {
			continue
		}
		if h.decided(l) {
			again = append(again, h)
			continue
		}
		for _, s := range stops {
			if s.Claim.Owner == h.Claim.Owner && s.Text == h.Cause.Text {
				h.written = h.Cause
			}
		}
	}
	g.mu.Unlock()
	for _, h := range again {
		g.again(h)
	}
}

// unclaimed reports whether a stopped partition's position is not that of the claim: it
// was never taken over, or is not there, or is held elsewhere.
func (h *Held) unclaimed() bool {
	switch h.Cause.Code {
	case "generation", "growth", "missing_position", "held_elsewhere":
		return true
	}
	return h.Claim.Epoch == 0
}

// decided reports whether somebody has decided about a stopped partition: its position
// is nobody's any more, or is there at last, or the stop that was written down is not.
// Another generation is another configuration's matter.
func (h *Held) decided(l offsets.Look) bool {
	switch {
	case h.Cause.Code == "generation", h.Cause.Code == "growth", !l.Exists:
		return false
	case h.Cause.Code == "missing_position":
		return true
	case h.Claim.Epoch == 0:
		return false
	}
	return l.Owner == (stream.UUID{}) || l.Owner == h.Claim.Owner && h.written.Code != "" && !l.Stop
}

// again takes a stopped partition over again, under a new owner. The group's own
// commit is not compared any more: the decision was made knowing it.
func (g *Group) again(h *Held) {
	g.mu.Lock()
	ok := g.held[h.Name] == h && h.State == Stopped
	if ok {
		now := time.Now()
		h.Claim.Owner, h.resolved, h.written = newOwner(), true, Cause{}
		h.set(Waiting, Cause{Code: "decided", Text: "taking over again"}, now)
		h.due = now
	}
	claim := h.Claim
	g.mu.Unlock()
	if ok {
		g.board.Tell(Event{Kind: "decided", Name: h.Name, Claim: claim})
		g.poke()
	}
}

// notice has the partitions that stand still attended to at once.
func (g *Group) notice() {
	select {
	case g.still <- struct{}{}:
	default:
	}
}
