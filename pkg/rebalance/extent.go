package rebalance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// Extent is what Kafka has of a partition, seen from a position: the offsets
// [Start, End), and where the log leaves the branch that the position is on.
type Extent struct {
	Start, End int64
	Fork       int64 // end of the position's leader epoch in this log; -1: the epoch is not known, here or there
	ForkEpoch  int32 // of the last record before Fork

	first, last int32 // leader epochs at Start and at End, -1 when unknown
}

// FindExtent asks Kafka for the extent of a partition, seen from a position with this
// leader epoch.
func FindExtent(ctx context.Context, adm *kadm.Client, n Name, epoch int32) (Extent, error) {
	x := Extent{Fork: -1, ForkEpoch: -1}
	start, err := listed(n)(adm.ListStartOffsets(ctx, n.Topic))
	if err != nil {
		return x, fmt.Errorf("start of the log: %w", err)
	}
	end, err := listed(n)(adm.ListEndOffsets(ctx, n.Topic))
	if err != nil {
		return x, fmt.Errorf("end of the log: %w", err)
	}
	x.Start, x.End, x.first, x.last = start.Offset, end.Offset, start.LeaderEpoch, end.LeaderEpoch
	if epoch >= 0 {
		x.Fork, x.ForkEpoch, err = epochEnd(ctx, adm, n, epoch)
	}
	return x, err
}

// Extents asks for many partitions at once, each seen from a position with the leader
// epoch given. One that Kafka does not answer for is left out.
func Extents(ctx context.Context, adm *kadm.Client, epochs map[Name]int32) (map[Name]Extent, error) {
	var topics []string
	var q kadm.OffsetForLeaderEpochRequest
	for n, epoch := range epochs {
		if !slices.Contains(topics, n.Topic) {
			topics = append(topics, n.Topic)
		}
		if epoch >= 0 {
			q.Add(n.Topic, n.Number, epoch)
		}
	}
	if len(topics) == 0 { // none would mean all
		return nil, nil
	}
	starts, err := adm.ListStartOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("starts of the logs: %w", err)
	}
	ends, err := adm.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("ends of the logs: %w", err)
	}
	var forks kadm.OffsetsForLeaderEpochs
	if len(q) > 0 {
		if forks, err = adm.OffsetForLeaderEpoch(ctx, q); err != nil {
			return nil, fmt.Errorf("leader epochs: %w", err)
		}
	}
	extents := map[Name]Extent{}
	for n := range epochs {
		start, serr := listed(n)(starts, nil)
		end, eerr := listed(n)(ends, nil)
		fork, ok := forks[n.Topic][n.Number]
		if serr != nil || eerr != nil {
			continue
		}
		x := Extent{Start: start.Offset, End: end.Offset, Fork: -1, ForkEpoch: -1, first: start.LeaderEpoch, last: end.LeaderEpoch}
		if ok && fork.Err == nil {
			x.Fork, x.ForkEpoch = fork.EndOffset, fork.LeaderEpoch
		}
		extents[n] = x
	}
	return extents, nil
}

// listed picks a partition out of an answer.
func listed(n Name) func(kadm.ListedOffsets, error) (kadm.ListedOffset, error) {
	return func(all kadm.ListedOffsets, err error) (kadm.ListedOffset, error) {
		if err != nil {
			return kadm.ListedOffset{}, err
		}
		o, ok := all.Lookup(n.Topic, n.Number)
		if !ok {
			return o, fmt.Errorf("%w: %s", errNoOffset, n)
		}
		return o, o.Err
	}
}

// OffsetAfter returns the first offset whose record is not older than a time, or the
// end of the log.
func OffsetAfter(ctx context.Context, adm *kadm.Client, n Name, at time.Time) (int64, error) {
	o, err := listed(n)(adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), n.Topic))
	if err != nil {
		return 0, fmt.Errorf("offset by time: %w", err)
	}
	return o.Offset, nil
}

// epochEnd asks where a leader epoch, or the last one before it that has records,
// ends; -1 when Kafka does not know it.
func epochEnd(ctx context.Context, adm *kadm.Client, n Name, epoch int32) (int64, int32, error) {
	var q kadm.OffsetForLeaderEpochRequest
	q.Add(n.Topic, n.Number, epoch)
	resp, err := adm.OffsetForLeaderEpoch(ctx, q)
	if err != nil {
		return -1, -1, fmt.Errorf("leader epoch: %w", err)
	}
	r, ok := resp[n.Topic][n.Number]
	switch {
	case !ok:
		return -1, -1, fmt.Errorf("leader epoch: %w: %s", errNoOffset, n)
	case r.Err != nil:
		return -1, -1, fmt.Errorf("leader epoch: %w", r.Err)
	}
	return r.EndOffset, r.LeaderEpoch, nil
}

// Truncated is the cause of a position that lies on a branch of the log that is gone.
const Truncated = "truncated"

// Loss compares a position with the log: code is the cause of the stop that a member
// would make of it, and to the nearest offset to go on at with nothing skipped that
// Kafka has. Without a loss code is empty and to is the position.
func (x Extent) Loss(next int64) (to int64, code string) {
	switch {
	case next < x.Start:
		return x.Start, outside
	case x.Fork >= 0 && x.Fork < next:
		return max(x.Fork, x.Start), Truncated
	case next > x.End:
		return x.End, outside
	}
	return next, ""
}

// EpochOf returns the leader epoch to store with a position: that of the record
// before it, or at the log's start of the record there. A log that was cut below the
// position ends that epoch before it. -1 when Kafka does not tell: the position then
// is protected only while it lies beyond the end of what is left.
func (x Extent) EpochOf(ctx context.Context, adm *kadm.Client, n Name, next int64) (int32, error) {
	switch {
	case x.last < 0:
		return -1, nil
	case next == x.Start:
		return x.first, nil
	case next == x.Fork:
		return x.ForkEpoch, nil
	}
	low, high := int32(0), x.last // the last epoch reaches next, since the log does
	for low < high {
		middle := low + (high-low)/2
		end, _, err := epochEnd(ctx, adm, n, middle)
		if err != nil {
			return -1, err
		}
		if end >= next {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return high, nil
}
