package rebalance

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

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
		m = now
	}
	if cause, stop := m.ahead(h.Name, a); stop && !resolved {
		g.stop(h, claim.Owner, cause, nil)
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
		h.Claim, h.unstamped = claim, true
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
		g.stop(h, claim.Owner, c, nil)
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

// stamp commits the positions of those partitions whose group offset is not ours, all
// at once. They are due again then, and find it ours.
func (g *Group) stamp(ctx context.Context) {
	var hs []*Held
	at := map[string]map[int32]kgo.EpochOffset{}
	g.mu.Lock()
	for n, h := range g.held {
		if h.unstamped && h.State == Waiting {
			if at[n.Topic] == nil {
				at[n.Topic] = map[int32]kgo.EpochOffset{}
			}
			at[n.Topic][n.Number] = kgo.EpochOffset{Epoch: h.Claim.LeaderEpoch, Offset: h.Claim.Next}
			hs = append(hs, h)
		}
		h.unstamped = false
	}
	g.mu.Unlock()
	if len(hs) == 0 {
		return
	}
	refused := g.commit(ctx, at)
	for _, h := range hs {
		if err := refused(h.Name); err != nil {
			g.postpone(h, slowPace)
			g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
			continue
		}
		g.mu.Lock()
		if g.held[h.Name] == h { // else the mirror is that of another assignment
			g.mirrors[h.Name] = mirror{at[h.Name.Topic][h.Name.Number].Offset, true}
		}
		g.mu.Unlock()
		g.postpone(h, 0)
	}
}

var errNoCommit = errors.New("Kafka did not answer the commit for the partition") //nolint:staticcheck // a product's name

// commit commits offsets with our metadata and returns what became of each. While the
// group rebalances it takes as long as that does, or as it may.
func (g *Group) commit(ctx context.Context, at map[string]map[int32]kgo.EpochOffset) (refused func(Name) error) {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	answers := map[Name]error{}
	var failed error
	g.kafka().CommitOffsetsSync(stamped(ctx, g.cfg.Pipeline), at,
		func(_ *kgo.Client, q *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
			if failed = err; err != nil {
				return
			}
			names := map[[16]byte]string{} // newer brokers answer with ids only
			for _, t := range q.Topics {
				names[t.TopicID] = t.Topic
			}
			for _, t := range resp.Topics {
				topic := t.Topic
				if topic == "" {
					topic = names[t.TopicID]
				}
				for _, p := range t.Partitions {
					answers[Name{topic, p.Partition}] = kerr.ErrorForCode(p.ErrorCode)
				}
			}
		})
	return func(n Name) error {
		err, ok := answers[n]
		if failed != nil {
			err = failed
		} else if !ok {
			err = errNoCommit
		}
		if err != nil {
			return fmt.Errorf("mirror: %w", err)
		}
		return nil
	}
}
