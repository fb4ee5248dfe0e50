package rebalance

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"effectonce/pkg/stream"
)

// ErrGroupBusy says that the group has members while offsets of another consumer are
// yet to become the pipeline's. If they are the pipeline's own, which began at the same
// moment, waiting helps; if they are that consumer's, it must be stopped first.
var ErrGroupBusy = errors.New("the group has members, and offsets of another consumer: has that one been stopped?")

// StampStarts makes the group's offsets ours where a pipeline begins, before it joins
// the group: what another consumer has left there was decided about by the start
// setting, and is no reset from outside. starts are the positions that nobody has ever
// claimed; a start that was interrupted behind the rows is made up for by the next.
func StampStarts(ctx context.Context, adm *kadm.Client, pipeline, group string, topics map[string]Topic, starts map[stream.Partition]int64) error {
	if len(starts) == 0 {
		return nil
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("group offsets: %w", err)
	}
	var ours kadm.Offsets
	for _, t := range topics {
		for n, o := range committed[t.Name] {
			start, begins := starts[stream.Partition{Topic: t.ID, Number: n}]
			if begins && mirrorOf(pipeline, o.At, &o.Metadata).foreign() {
				ours.Add(kadm.Offset{Topic: t.Name, Partition: n, At: start, LeaderEpoch: -1, Metadata: metadata(pipeline)})
			}
		}
	}
	if len(ours) == 0 {
		return nil
	}
	err = adm.CommitAllOffsets(ctx, group, ours)
	if errors.Is(err, kerr.UnknownMemberID) {
		return ErrGroupBusy
	}
	if err != nil {
		return fmt.Errorf("group offsets: %w", err)
	}
	return nil
}
