package rebalance

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/stream"
)

// stamps commits, until ctx ends, positions that the group's offset is yet to follow:
// of partitions that are opened then, and of those that were just opened elsewhere than
// the group's offset is, since an idle one would be shown with a lag for ever. It has a
// goroutine of its own: while the group rebalances a commit waits, and takeovers do
// not.
func (g *Group) stamps(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.unstamped:
		case <-timer.C:
		}
		if !g.stamp(ctx) {
			timer.Reset(slowPace)
		}
	}
}

func (g *Group) pokeStamps() {
	select {
	case g.unstamped <- struct{}{}:
	default:
	}
}

// trails has the group's offset brought to where a partition was just opened. The mirror
// is never ahead: the position is there, or further.
func (g *Group) trails(h *Held, owner stream.UUID, next int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	m, known := g.mirrors[h.Name]
	if known && m.offset != next && h.Claim.Owner == owner {
		h.unstamped = true
		g.pokeStamps()
	}
}

// stamp commits them all at once, and reports whether none is left. Those that wait for
// it are due then, and find the group's offset ours.
func (g *Group) stamp(ctx context.Context) bool {
	var hs []*Held
	at := map[string]map[int32]kgo.EpochOffset{}
	g.mu.Lock()
	for n, h := range g.held {
		if !h.unstamped || h.State != Waiting && h.State != Running {
			continue
		}
		if at[n.Topic] == nil {
			at[n.Topic] = map[int32]kgo.EpochOffset{}
		}
		at[n.Topic][n.Number] = kgo.EpochOffset{Epoch: h.Claim.LeaderEpoch, Offset: h.Claim.Next}
		hs = append(hs, h)
	}
	g.mu.Unlock()
	if len(hs) == 0 {
		return true
	}
	all := true
	refused := g.commit(ctx, at)
	for _, h := range hs {
		err := refused(h.Name)
		all = g.stampedOne(h, at[h.Name.Topic][h.Name.Number].Offset, err) && all
	}
	g.poke()
	return all
}

// stampedOne notes what became of the commit of one partition.
func (g *Group) stampedOne(h *Held, at int64, err error) bool {
	g.mu.Lock()
	held := g.held[h.Name] == h // else the mirror is that of another assignment
	if held && err == nil {
		g.mirrors[h.Name] = mirror{at, true}
		h.unstamped = false
		if h.State == Waiting {
			h.due = time.Now()
		}
	}
	g.mu.Unlock()
	if held && err != nil {
		g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
	}
	return !held || err == nil
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
