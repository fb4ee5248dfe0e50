package processor

import (
	"fmt"
	"time"

	"effectonce/pkg/rebalance"
)

// consequences says what becomes of the records between position and target, and
// refuses what was not permitted.
func (d *resolver) consequences(plan *ResolutionPlan) error {
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
	if plan.Cause == rebalance.Truncated {
		note("the log was cut at %d: what was applied from there up to %d is of a branch that is gone, and stays applied", d.extent.Fork, plan.From.Offset)
		if d.extent.Fork <= plan.Start {
			note("the log begins there: whether more of the new branch is gone already is not known")
		}
	}
	if plan.To.Offset >= plan.From.Offset {
		return nil
	}
	if len(d.cfg.Key) == 0 {
		return d.withoutKeys(plan, note)
	}
	note("%d offsets are read again; records whose key was applied are duplicates and change nothing, dead letters are tried again", plan.ReadAgain)
	if d.cfg.KeyMissing == KeyCoordinates && plan.Cause != "" {
		note("key_missing: coordinates: a record without its key below %d is known by its offset, and is taken for the one that was there before the log was cut; --skip-keyless permits it",
			plan.From.Offset)
		if !d.r.Keyless {
			return ErrKeyless
		}
	}
	return d.forgotten(plan, note)
}

// withoutKeys: nothing but the position knows what was applied. Behind a truncation
// the records are others, and only those before it are applied again.
func (d *resolver) withoutKeys(plan *ResolutionPlan, note func(string, ...any)) error {
	same := plan.From.Offset
	if plan.Cause == rebalance.Truncated {
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

// forgotten: below the offset from which on all keys are known, records may be applied
// again.
func (d *resolver) forgotten(plan *ResolutionPlan, note func(string, ...any)) error {
	if d.known.Changed {
		note("the key rule was changed and keys were forgotten: they are known from offset %d on", d.known.Rule)
	}
	if plan.Horizon = d.known.Horizon; d.known.Young > plan.To.Offset {
		note("dedup.retention %s: keys from before %s, offset %d, may be forgotten",
			d.cfg.DedupRetention, plan.Horizon.UTC().Format(time.DateTime), d.known.Young)
	}
	if plan.Forgotten = max(min(d.known.From(), plan.From.Offset)-plan.To.Offset, 0); plan.Forgotten == 0 {
		return nil
	}
	note("records of %d offsets may be applied again; --apply-again permits it", plan.Forgotten)
	if !d.r.Again {
		return ErrAgain
	}
	return nil
}
