package rebalance

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

func truncation(n Name, next, end int64) Cause {
	return Cause{
		Code: Truncated, Fix: toDecide(n),
		Text: fmt.Sprintf("the log was truncated to offset %d, records up to %d were applied from the branch that is gone", end, next),
	}
}

// toDecide is the command that shows what to decide about a partition.
func toDecide(n Name) string {
	return fmt.Sprintf("processor partitions resolve %s --accept-loss shows where it would go on", n)
}

// Failed judges a partition's fetch error. Look at a poll's errors before its
// records: records behind a truncation come before their error. It reports
// whether the partition was stopped; an error that Kafka heals is only told.
func (g *Group) Failed(n Name, err error) bool {
	g.mu.Lock()
	h := g.held[n]
	var owner stream.UUID
	if h != nil {
		owner = h.Claim.Owner
	}
	g.mu.Unlock()
	if h == nil {
		return false
	}
	var loss *kgo.ErrDataLoss
	var big *kgo.ErrDecompressTooLarge
	var cause Cause
	switch {
	case errors.As(err, &loss):
		cause = truncation(n, loss.ConsumedTo, loss.ResetTo)
	case errors.As(err, &big):
		cause = Cause{Code: "too_large", Text: err.Error(), Fix: "raise kafka.max_decompressed_batch, if the batch is genuine"}
	case errors.Is(err, kerr.OffsetOutOfRange):
		cause = Cause{Code: outside, Text: "the position lies outside the log", Fix: toDecide(n)}
	case errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID), errors.Is(err, kerr.UnknownTopicOrPartition):
		cause = Recreated(n.Topic)
	case kerr.IsRetriable(err):
		g.board.Tell(Event{Kind: "retry", Name: n, Err: err})
		return false
	default:
		cause = Cause{Code: "fetch", Text: err.Error()}
	}
	g.stop(h, owner, cause, nil)
	return true
}

// outside is the cause of a position that Kafka does not have.
const outside = "out_of_range"

// Recreated is the cause of a topic whose id is not that of its positions.
func Recreated(topic string) Cause {
	return Cause{
		Code: "recreated_topic", Text: fmt.Sprintf("topic %q was deleted, or deleted and created again: its id is another", topic),
		Fix: "positions of the old topic say nothing about the new one; decide whether to start it at its beginning",
	}
}

// TopicID stops all partitions of a topic whose fetches carry another id than the
// positions were made for. A zero id (old protocol) says nothing.
func (g *Group) TopicID(topic string, id stream.UUID) {
	g.mu.Lock()
	known := g.topics[topic].ID
	var owners []stream.UUID
	if id != (stream.UUID{}) && known != id {
		for _, h := range g.held {
			if h.Name.Topic == topic {
				owners = append(owners, h.Claim.Owner)
			}
		}
	}
	g.mu.Unlock()
	for _, owner := range owners {
		if h := g.byOwner(owner); h != nil {
			g.stop(h, owner, Recreated(topic), nil)
		}
	}
}

// missing decides about a partition without a position row. known is the partition
// count that rows were known for when the takeover asked: rows may have been added
// since, by the growth that another new partition began.
func (g *Group) missing(n Name, known int32) (Cause, bool) {
	g.mu.Lock()
	t := g.topics[n.Topic]
	g.mu.Unlock()
	switch {
	case n.Number < known:
		return Cause{
			Code: "missing_position", Text: "it has no position row, though the pipeline started with it: a wrong or restored database",
			Fix: "connect the right database",
		}, true
	case !g.cfg.Grows && t.Scope != stream.ScopeTopic:
		return Cause{
			Code: "growth", Text: fmt.Sprintf("the topic grew beyond the %d partitions that keys were hashed over: a key may come on two partitions now", known),
			Fix: "set scope: topic and run processor pipeline migrate, which keeps all keys; on_partition_growth: widen does so by itself",
		}, true
	}
	return Cause{}, false
}

// grow adds the positions and logs of partition numbers never seen; they begin at
// their first offset. The takeover follows at the next attempt.
func (g *Group) grow(ctx context.Context, h *Held, a found) error {
	if cause, stop := g.missing(h.Name, a.known); stop {
		g.stop(h, a.Claim.Owner, cause, nil)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	g.mu.Lock()
	t := g.topics[h.Name.Topic]
	g.mu.Unlock()
	starts, err := g.firstOffsets(ctx, t)
	if err != nil {
		return err
	}
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	var count int32
	if err := pgtx.Do(ctx, conn.Conn(), pgtx.DefaultSettings, func(tx *pgtx.Tx) (err error) {
		count, err = g.add(ctx, tx, t, starts)
		return err
	}); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	t.Partitions = max(count, g.topics[t.Name].Partitions)
	g.topics[t.Name] = t
	return nil
}

// firstOffsets are those of the partitions beyond the count we know.
func (g *Group) firstOffsets(ctx context.Context, t Topic) ([]int64, error) {
	listed, err := kadm.NewClient(g.kafka()).ListStartOffsets(ctx, t.Name)
	if err != nil {
		return nil, fmt.Errorf("start offsets: %w", err)
	}
	var starts []int64
	for n := t.Partitions; ; n++ {
		o, ok := listed.Lookup(t.Name, n)
		if !ok || o.Err != nil {
			return starts, nil //nolint:nilerr // not there yet: the next attempt adds it
		}
		starts = append(starts, o.Offset)
	}
}

// add writes the rows and returns the count that holds now. Another member may have
// grown the topic first, and by another number: then its rows stand, and ours,
// logs without positions among them, must not come beside them.
func (g *Group) add(ctx context.Context, tx *pgtx.Tx, t Topic, starts []int64) (int32, error) {
	row := offsets.Topic{ID: t.ID, Name: t.Name, Partitions: t.Partitions, Generation: t.Generation}
	if err := g.cfg.Offsets.Grow(ctx, tx, g.cfg.ID, row, starts); err != nil {
		return 0, err
	}
	rows, err := g.cfg.Offsets.Topics(ctx, tx, g.cfg.ID, []string{t.Name})
	if err != nil {
		return 0, err
	}
	for _, r := range rows {
		if r.ID != t.ID {
			continue
		}
		if t.Scope == stream.ScopeTopic { // its one log takes them in
			return r.Partitions, nil
		}
		added := min(r.Partitions-t.Partitions, int32(len(starts)))
		return r.Partitions, g.cfg.Log.Create(ctx, tx, g.cfg.ID, t.ID, t.Partitions, added, t.Generation)
	}
	return t.Partitions, nil
}
