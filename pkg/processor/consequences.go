package processor

import (
	"context"
	"fmt"

	"effectonce/pkg/rebalance"
)

// consequences says what becomes of the records between position and target, and
// refuses what was not permitted.
func (d *resolver) consequences(ctx context.Context, plan *ResolutionPlan) error {
	note := func(format string, args ...any) { plan.Notes = append(plan.Notes, fmt.Sprintf(format, args...)) }
	if plan.GivenUp > 0 {
		note("%d offsets, %d to %d, are gone from Kafka and are given up", plan.GivenUp, plan.From.Offset, plan.To.Offset-1)
	}
	if plan.To.LeaderEpoch < 0 {
		note("the leader epoch before %d is not known: a truncation below it is noticed only while the log ends before it", plan.To.Offset)
	}
	if d.ahead > plan.To.Offset {
		note("the group's own offset is ahead, at %d: it is moved along", d.ahead)
	}
	if plan.Cause == truncated {
		note("the log was cut at %d: what was applied from there up to %d is of a branch that is gone, and stays applied", d.extent.Fork, plan.From.Offset)
	}
	if plan.ReadAgain == 0 {
		return nil
	}
	if len(d.cfg.Key) == 0 {
		return d.withoutKeys(plan, note)
	}
	note("%d offsets are read again; records whose key was applied are duplicates and change nothing", plan.ReadAgain)
	if d.cfg.KeyMissing == KeyCoordinates && plan.Cause == truncated {
		note("key_missing: coordinates: a record without its key from %d to %d is known by its offset, and is taken for the one that was there before the truncation: --skip-keyless permits it",
			d.extent.Fork, plan.From.Offset-1)
		if !d.r.Keyless {
			return ErrKeyless
		}
	}
	if d.cfg.DedupRetention > 0 {
		return d.retention(ctx, plan, note)
	}
	return nil
}

// withoutKeys: nothing but the position knows what was applied. Behind a truncation
// the records are others, and only those before it are applied again.
func (d *resolver) withoutKeys(plan *ResolutionPlan, note func(string, ...any)) error {
	same := plan.From.Offset
	if plan.Cause == truncated {
		same = d.extent.Fork
		note("there is no business key: what producers have sent again behind the truncation is applied again")
	}
	if plan.Forgotten = max(same-plan.To.Offset, 0); plan.Forgotten == 0 {
		return nil
	}
	note("there is no business key: %d offsets are applied again; --apply-again permits it", plan.Forgotten)
	if !d.r.Again {
		return ErrAgain
	}
	return nil
}

// retention: keys older than the log's progress less the retention may be forgotten.
// Times are those of the records: the first one in the log that is younger tells from
// which offset on all are known.
func (d *resolver) retention(ctx context.Context, plan *ResolutionPlan, note func(string, ...any)) error {
	if d.progress.IsZero() {
		return nil
	}
	plan.Horizon = d.progress.Add(-d.cfg.DedupRetention)
	known, err := rebalance.OffsetAfter(ctx, d.adm, d.name(), plan.Horizon)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	if plan.Forgotten = max(min(known, plan.From.Offset)-plan.To.Offset, 0); plan.Forgotten == 0 {
		return nil
	}
	note("dedup.retention %s: keys from before %s may be forgotten, and the records of %d offsets below %d applied again: --apply-again permits it",
		d.cfg.DedupRetention, plan.Horizon.UTC().Format("2006-01-02 15:04:05"), plan.Forgotten, known)
	if !d.r.Again {
		return ErrAgain
	}
	return nil
}

// truncated is the cause of a position on a branch of the log that is gone.
const truncated = "truncated"
