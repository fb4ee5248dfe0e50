package processor

import (
	"context"
	"encoding/json" //nolint:depguard // writes a decision's detail, never reads a record
	"errors"
	"fmt"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// Verb is what somebody decides about a partition.
type Verb string

// The verbs of a Resolution.
const (
	AcceptLoss Verb = "accept_loss" // go on at the nearest offset that Kafka has
	Rewind     Verb = "rewind"      // go on at Resolution.To
)

// Resolution is a decision about one partition.
type Resolution struct {
	Topic     string
	Partition int32
	Verb      Verb
	To        int64 // of Rewind
	Again     bool  // permit that records are applied again, where the memory does not know them any more
	Keyless   bool  // permit that records without a key behind a truncation are taken for those that were there before
	Apply     bool  // else only the plan is made
	Reason    string
}

// ResolutionPlan is what a Resolution does.
type ResolutionPlan struct {
	Pipeline  string    `json:"pipeline"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Verb      Verb      `json:"verb"`
	Cause     string    `json:"cause"` // out_of_range or truncated; empty: Kafka has what the position stands on
	From      Place     `json:"from"`
	To        Place     `json:"to"`
	Start     int64     `json:"log_start"`
	End       int64     `json:"log_end"`
	GivenUp   int64     `json:"given_up"`     // offsets between position and log that are gone
	ReadAgain int64     `json:"read_again"`   // offsets below the position that are read again
	Forgotten int64     `json:"forgotten"`    // of these, before what the memory still knows for sure
	Horizon   time.Time `json:"horizon"`      // how far back it knows; zero: everything
	Notes     []string  `json:"notes"`        // what becomes of records, and what needs a permission
	Mirror    string    `json:"group_offset"` // what became of the group's own offset; empty in a plan
}

// Place is a position: the next offset and the leader epoch before it.
type Place struct {
	Offset      int64 `json:"offset"`
	LeaderEpoch int32 `json:"leader_epoch"` // -1: not known
}

// Errors of Resolve. Nothing was done; the plan beside it has the facts.
var (
	ErrNothingLost = errors.New("nothing is lost: Kafka has what the position stands on")
	ErrOutside     = errors.New("the log does not have this offset, or records between it and the position would be skipped without a row")
	ErrAgain       = errors.New("records would be applied again")
	ErrKeyless     = errors.New("records without a key would be taken for those that were there before the truncation")
	ErrNoPosition  = errors.New("the partition has no position")
)

// Resolve decides about a partition that stands still, or that is to be read again.
// Without Apply it makes the plan. With it the position moves in one transaction, if
// it still is where the plan saw it (else offsets.ErrMoved), and is taken from its
// owner: a member that holds the partition goes on from there by itself. Nothing that
// Kafka has is skipped. A partition that is read while it is sent back may have moved on
// by its member's batches; the plan returned says from where it was sent back.
//
// The plan is returned beside the errors of this file. pgtx.ErrCommitUnknown: look
// again where the position is.
func Resolve(ctx context.Context, cfg Config, r Resolution) (ResolutionPlan, error) {
	at, err := sit(ctx, cfg)
	if err != nil {
		return ResolutionPlan{}, err
	}
	defer at.leave(ctx)
	d := &resolver{desk: at, store: offsets.New(at.cfg.Schema), r: r}
	plan, err := d.plan(ctx)
	switch {
	case err != nil, !r.Apply:
		return plan, err
	case r.Reason == "":
		return plan, ErrReason
	}
	if err := d.apply(ctx, &plan); err != nil {
		return plan, err
	}
	plan.Mirror = d.mirror(ctx, plan)
	return plan, nil
}

// resolver carries out a Resolution.
type resolver struct {
	*desk

	store *offsets.Store
	r     Resolution

	id     int64            // of the pipeline
	at     offsets.Standing // as the plan read it
	ahead  int64            // the group's own commit, -1: none
	extent rebalance.Extent
	known  rebalance.Known
}

func (d *resolver) name() rebalance.Name {
	return rebalance.Name{Topic: d.r.Topic, Number: d.r.Partition}
}

// plan reads rows and log, and says what the resolution comes to. It is empty beside an
// error of reading.
func (d *resolver) plan(ctx context.Context) (ResolutionPlan, error) {
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	if err := d.look(limited); err != nil {
		return ResolutionPlan{}, fmt.Errorf("%s: %w", d.name(), err)
	}
	plan := ResolutionPlan{
		Pipeline: d.cfg.Pipeline, Topic: d.r.Topic, Partition: d.r.Partition, Verb: d.r.Verb, Notes: []string{},
		From: Place{d.at.Next, d.at.Leader}, To: Place{d.at.Next, d.at.Leader}, Start: d.extent.Start, End: d.extent.End,
	}
	if err := d.aim(&plan); err != nil {
		return plan, fmt.Errorf("%s: %w", d.name(), err)
	}
	var err error
	if plan.To.LeaderEpoch, err = d.extent.EpochOf(limited, d.adm, d.name(), plan.To.Offset); err != nil {
		return ResolutionPlan{}, fmt.Errorf("kafka: %w", err)
	}
	err = d.consequences(&plan)
	return plan, err
}

// look reads what the plan is made from: the rows, the log, the group's offset, and from
// where on keys are known.
func (d *resolver) look(ctx context.Context) error {
	cluster, found, err := rebalance.Find(ctx, d.adm, []string{d.r.Topic})
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	if err := d.read(ctx, cluster, found[d.r.Topic]); err != nil {
		return err
	}
	if d.extent, err = rebalance.FindExtent(ctx, d.adm, d.name(), d.at.Leader); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	if d.ahead, err = rebalance.Mirrored(ctx, d.adm, d.cfg.Pipeline, d.cfg.Group, d.name()); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	keys := rebalance.Keys{Pipeline: d.id, Retention: d.cfg.DedupRetention, Offsets: d.store, Log: dedup.New(d.cfg.Schema)}
	d.known, err = keys.Known(ctx, d.conn, waiting(), d.adm, d.r.Topic, d.at.Partition, d.at.Next)
	return err
}

// read looks at the rows: the pipeline's, which must be of these clusters, and the
// position, which must be of this topic and of this configuration.
func (d *resolver) read(ctx context.Context, cluster string, topic rebalance.Topic) error {
	server, err := offsets.Identify(ctx, d.conn)
	if err != nil {
		return err
	}
	tx, err := pgtx.Begin(ctx, d.conn, waiting())
	if err != nil {
		return err
	}
	defer tx.Rollback(ctx)
	row, err := d.store.Find(ctx, tx, d.cfg.Pipeline, false)
	if err != nil {
		return err
	}
	d.id = row.ID
	known, other := false, false
	err = tx.Run(ctx, d.store.Standings(row.ID, []string{d.r.Topic}, func(s offsets.Standing) {
		if s.Topic.ID != topic.ID {
			other = true
			return
		}
		if s.Partition.Number == d.r.Partition {
			d.at, known = s, true
		}
	}))
	switch {
	case err != nil:
		return err
	case row.ClusterID != cluster:
		return fmt.Errorf("%w: it is %q, connected is %q", offsets.ErrOtherCluster, row.ClusterID, cluster)
	case row.SystemID != server.SystemID:
		return fmt.Errorf("%w: its system identifier is %d, connected is %d", offsets.ErrOtherDatabase, row.SystemID, server.SystemID)
	case !known && other:
		return ErrRecreated
	case !known, !d.at.Exists:
		return ErrNoPosition
	case !d.cfg.accepts(d.at.Topic):
		return fmt.Errorf("%w: run this with the configuration it was made with", ErrGeneration)
	}
	return nil
}

// aim finds where the position goes.
func (d *resolver) aim(plan *ResolutionPlan) error {
	furthest, cause := d.extent.Loss(d.at.Next)
	plan.Cause = cause
	plan.To.Offset = furthest
	switch {
	case d.r.Verb == AcceptLoss && cause == "":
		return fmt.Errorf("%w: it is at %d, the log is [%d, %d)", ErrNothingLost, d.at.Next, plan.Start, plan.End)
	case d.r.Verb == Rewind && (d.r.To < plan.Start || d.r.To > furthest):
		return fmt.Errorf("%w: %d is not in [%d, %d]", ErrOutside, d.r.To, plan.Start, furthest)
	case d.r.Verb == Rewind:
		plan.To.Offset = d.r.To
	}
	plan.GivenUp = max(plan.To.Offset-d.at.Next, 0)
	plan.ReadAgain = max(min(d.at.Next, plan.End)-plan.To.Offset, 0)
	return nil
}

// apply carries the plan out, if the rows are still those that it was made from. A batch
// that its member has committed since does not matter where the partition goes back:
// that much more is read again.
func (d *resolver) apply(ctx context.Context, plan *ResolutionPlan) error {
	var now offsets.Row
	return pgtx.Do(ctx, d.conn, waiting(), func(tx *pgtx.Tx) error {
		if plan.Cause == "" && plan.ReadAgain > 0 && now.Owner == d.at.Owner && now.Next > plan.From.Offset {
			plan.ReadAgain += now.Next - plan.From.Offset
			plan.From = Place{now.Next, now.LeaderEpoch}
		}
		detail, _ := json.Marshal(*plan) // strings and numbers: never fails
		return d.store.Move(ctx, tx, d.id, offsets.Move{
			Partition: d.at.Partition, Owner: d.at.Owner, Generation: d.at.Generation,
			From: plan.From.Offset, To: plan.To.Offset, LeaderEpoch: plan.To.LeaderEpoch, Mirror: d.ahead,
		}, offsets.Decision{Kind: string(plan.Verb), Reason: d.r.Reason, Detail: detail})
	}, d.store.Read(d.id, []stream.Partition{d.at.Partition}, true, func(r offsets.Row) { now = r }))
}

// mirror brings the group's own offset along, for lag tools. A group with members
// brings it along by itself.
func (d *resolver) mirror(ctx context.Context, plan ResolutionPlan) string {
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	if err := rebalance.Mirror(limited, d.adm, d.cfg.Pipeline, d.cfg.Group, d.name(), plan.To.Offset); err != nil {
		return "left to the group's members: " + oneLine(err)
	}
	return "moved"
}
