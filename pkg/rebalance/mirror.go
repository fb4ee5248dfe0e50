package rebalance

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Kafka's group offset is only a mirror of the position, for lag tools. Each
// commit carries our metadata, so that an offset without it is known to come from
// somebody else.
func metadata(pipeline string) string { return "eo1 " + pipeline }

// stamped makes every offset commit of a client under ctx carry our metadata.
func stamped(ctx context.Context, pipeline string) context.Context {
	md := metadata(pipeline)
	return kgo.PreCommitFnContext(ctx, func(q *kmsg.OffsetCommitRequest) error {
		for i := range q.Topics {
			for j := range q.Topics[i].Partitions {
				q.Topics[i].Partitions[j].Metadata = &md
			}
		}
		return nil
	})
}

// mirror is what the group has committed for a partition.
type mirror struct {
	offset int64 // -1: nothing
	ours   bool
}

func mirrorOf(pipeline string, offset int64, md *string) mirror {
	return mirror{offset, md != nil && *md == metadata(pipeline)}
}

// mirrorSays compares the group's offset with the position just taken over. Only
// an offset without our metadata is external; ours ahead of Postgres means the
// database went back or is the wrong one, and is never honoured.
func (g *Group) mirrorSays(n Name, next int64) (Cause, bool) {
	g.mu.Lock()
	m, ok := g.mirrors[n]
	g.mu.Unlock()
	switch {
	case !ok || m.offset < 0:
		return Cause{}, false
	case m.ours && m.offset > next:
		return Cause{
			Code: "mirror_ahead",
			Text: fmt.Sprintf("Postgres is at offset %d, the group's own commit at %d: the database went back or is another one", next, m.offset),
			Fix:  "connect the right database, or reset the group's offsets to the position to go on from Postgres",
		}, true
	case !m.ours && m.offset != next:
		c := Cause{
			Code: "external_reset",
			Text: fmt.Sprintf("the group's offset was moved to %d from outside, Postgres is at %d", m.offset, next),
			Fix:  "positions live in Postgres; the group's offset is only shown to lag tools",
		}
		if g.cfg.OnReset == "fail" {
			return c, true
		}
		g.board.Tell(Event{Kind: "external_reset", Name: n, Cause: c})
	}
	return Cause{}, false
}

// Leave brings the mirror up to what is marked, once nothing is in flight any more
// and before the client is closed: the client leaves it to whoever sets a callback
// for revoked partitions. Its error costs a lag tool a few seconds of truth.
func (g *Group) Leave(ctx context.Context) error {
	cl := g.kafka()
	if cl == nil {
		return nil
	}
	if err := cl.CommitMarkedOffsets(stamped(ctx, g.cfg.Pipeline)); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	return nil
}

// Mirrored returns the group's own commit for a partition, -1 when there is none or
// when it is somebody else's.
func Mirrored(ctx context.Context, adm *kadm.Client, pipeline, group string, n Name) (int64, error) {
	committed, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return -1, nil
	}
	if err != nil {
		return -1, fmt.Errorf("group offsets: %w", err)
	}
	o, ok := committed.Lookup(n.Topic, n.Number)
	switch {
	case !ok || o.Err == nil && o.Metadata != metadata(pipeline):
		return -1, nil
	case o.Err != nil:
		return -1, fmt.Errorf("group offset: %w", o.Err)
	}
	return o.At, nil
}

// Mirror commits a position as the group's own offset. Kafka refuses it while the group
// has members: they do it themselves.
func Mirror(ctx context.Context, adm *kadm.Client, pipeline, group string, n Name, next int64) error {
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: n.Topic, Partition: n.Number, At: next, LeaderEpoch: -1, Metadata: metadata(pipeline)})
	if err := adm.CommitAllOffsets(ctx, group, o); err != nil {
		return fmt.Errorf("group offset: %w", err)
	}
	return nil
}
