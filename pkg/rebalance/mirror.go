package rebalance

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
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

// foreign reports whether somebody else wrote the offset. See reset.go.
func (m mirror) foreign() bool { return m.offset >= 0 && !m.ours }

// mirrored is what the group had committed when the partition was assigned, or what
// is known to be committed since.
func (g *Group) mirrored(n Name) mirror {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m, ok := g.mirrors[n]; ok {
		return m
	}
	return mirror{offset: -1}
}

// mirroredAhead returns the partitions taken over whose mirror is ahead of the position.
func (g *Group) mirroredAhead(answers []offsets.Answer) (ahead []stream.Partition) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, a := range answers {
		m := g.mirrors[Name{a.Claim.TopicName, a.Claim.Partition.Number}]
		if a.Outcome == offsets.Taken && m.ours && m.offset > a.Claim.Next {
			ahead = append(ahead, a.Claim.Partition)
		}
	}
	return ahead
}

// ahead judges our own commit beyond the position just taken over: the database went
// back or is the wrong one. That is never honoured. Up to where a decision took the
// position back from it means nothing.
func (m mirror) ahead(n Name, a found) (Cause, bool) {
	next := a.Claim.Next
	if !m.ours || m.offset <= max(next, a.rewound) {
		return Cause{}, false
	}
	return Cause{
		Code: "mirror_ahead",
		Text: fmt.Sprintf("Postgres is at offset %d, the group's own commit at %d: the database went back or is another one", next, m.offset),
		Fix:  "connect the right database; or " + goesOn(n, next),
	}, true
}

// Mirrored returns the group's own commit for a partition, -1 when there is none or
// when it is somebody else's.
func Mirrored(ctx context.Context, adm *kadm.Client, pipeline, group string, n Name) (int64, error) {
	m, err := askMirror(ctx, adm, pipeline, group, n)
	if err != nil || !m.ours {
		return -1, err
	}
	return m.offset, nil
}

// askMirror asks Kafka what the group has committed for a partition.
func askMirror(ctx context.Context, adm *kadm.Client, pipeline, group string, n Name) (mirror, error) {
	none := mirror{offset: -1}
	committed, err := adm.FetchOffsets(ctx, group)
	if errors.Is(err, kerr.GroupIDNotFound) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("group offsets: %w", err)
	}
	o, ok := committed.Lookup(n.Topic, n.Number)
	switch {
	case !ok:
		return none, nil
	case o.Err != nil:
		return none, fmt.Errorf("group offset: %w", o.Err)
	}
	return mirrorOf(pipeline, o.At, &o.Metadata), nil
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
