package processor

import (
	"bytes"
	"context"
	"encoding/json" //nolint:depguard // reads the settings written by register, never a record
	"errors"
	"fmt"
	"slices"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// Plan is what it takes to have the rows of a pipeline mean what a configuration
// says.
type Plan struct {
	Pipeline string      `json:"pipeline"`
	From     string      `json:"from"` // the rule, for people
	To       string      `json:"to"`
	Topics   []TopicPlan `json:"topics"` // those that change

	rule bool // the pipeline's own row changes
}

// TopicPlan is what changes for one topic.
type TopicPlan struct {
	Topic string     `json:"topic"`
	From  TopicState `json:"from"`
	To    TopicState `json:"to"`
	Keys  int64      `json:"keys"` // in its history
	Kept  bool       `json:"kept"` // else they are forgotten
}

// TopicState is where a key of the topic is unique, and over how many partitions.
type TopicState struct {
	Scope      stream.Scope `json:"scope"`
	Partitions int32        `json:"partitions"`
}

// Empty reports whether there is nothing to change.
func (p Plan) Empty() bool { return !p.rule && len(p.Topics) == 0 }

// Forgets reports whether the history of a topic is given up: what was applied before
// is then applied again when it comes again.
func (p Plan) Forgets() bool {
	return slices.ContainsFunc(p.Topics, func(t TopicPlan) bool { return !t.Kept })
}

// Migration says what Migrate may do.
type Migration struct {
	Apply  bool   // else only the plan is made
	Forget bool   // keys that say nothing under the new rule may be forgotten
	Reason string // written down with the decision
}

// ErrForgets says that a change would give up the history of a topic, which was not
// permitted, and that nothing was done: permit it, or name a new pipeline.
var ErrForgets = errors.New("keys would be forgotten: they say nothing under the new rule")

// ErrChanged says that a member or somebody else changed the pipeline meanwhile, and
// that nothing was done: look at the new plan.
var ErrChanged = errors.New("the pipeline was changed meanwhile")

// Migrate changes what the commits of a pipeline mean to what cfg says: its key rule,
// the scope and partition count of all of its topics, in one transaction. Positions
// stay. Members of the old configuration stop at their next commit, those of the new
// one may start behind it.
//
// It returns the plan also when it only made it, and beside ErrForgets. Keys are kept
// where they mean the same. ErrCommitUnknown of package pgtx: make the plan again, it
// is empty if it was carried out.
func Migrate(ctx context.Context, cfg Config, m Migration) (Plan, error) {
	at, err := sit(ctx, cfg)
	if err != nil {
		return Plan{}, err
	}
	defer at.leave(ctx)
	g := &migrator{desk: at, stores: stores{offsets.New(at.cfg.Schema), dedup.New(at.cfg.Schema)}}
	plan, changes, err := g.plan(ctx)
	switch {
	case err != nil, plan.Empty(), !m.Apply:
		return plan, err
	case plan.Forgets() && !m.Forget:
		return plan, ErrForgets
	}
	return plan, g.apply(ctx, changes, m.Reason)
}

// migrator carries out a migration.
type migrator struct {
	*desk
	stores

	row offsets.Pipeline // as the plan read it
}

// waiting are the settings of a migration: it waits for batches in flight, and for
// members that start; it counts keys.
func waiting() pgtx.Settings {
	return pgtx.Settings{Lock: 30 * time.Second, Statement: 10 * time.Minute, Idle: reach}
}

// plan compares rows, Kafka and configuration.
func (g *migrator) plan(ctx context.Context) (Plan, []change, error) {
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	cluster, found, err := rebalance.Find(limited, g.adm, g.cfg.Topics)
	if err != nil {
		return Plan{}, nil, fmt.Errorf("kafka: %w", err)
	}
	rows, err := g.read(ctx)
	if err != nil {
		return Plan{}, nil, fmt.Errorf("pipeline %q: %w", g.cfg.Pipeline, err)
	}
	if g.row.ClusterID != cluster {
		return Plan{}, nil, fmt.Errorf("pipeline %q: %w: it is %q, connected is %q", g.cfg.Pipeline, offsets.ErrOtherCluster, g.row.ClusterID, cluster)
	}
	var made rule // an empty one, of which no digest is right, if it cannot be read
	_ = json.Unmarshal([]byte(g.row.Settings), &made)
	keys, err := g.keys(ctx)
	if err != nil {
		return Plan{}, nil, err
	}
	next := g.cfg.rule()
	plan := Plan{
		Pipeline: g.cfg.Pipeline, From: made.words(), To: next.words(), Topics: []TopicPlan{},
		rule: !bytes.Equal(g.row.Generation, g.cfg.generation(g.cfg.Scope, 0)),
	}
	var changes []change
	for _, row := range rows {
		c := change{row: row, rule: next, scope: g.scope(row, found), count: row.Partitions}
		if t := found[row.Name]; t.ID == row.ID {
			c.count = max(c.count, t.Partitions)
		}
		if bytes.Equal(c.generation(), row.Generation) {
			continue // more partitions alone are added by whoever meets them
		}
		c.keep = keeps(row, made, next, c.scope, c.count)
		changes = append(changes, c)
		plan.Topics = append(plan.Topics, TopicPlan{
			Topic: row.Name, From: TopicState{row.Scope, row.Partitions}, To: TopicState{c.scope, c.count},
			Keys: keys[row.ID], Kept: c.keep,
		})
	}
	return plan, changes, nil
}

// scope is where a topic's key is to be unique. A topic that is widened at growth
// stays so, and one that has grown is widened now.
func (g *migrator) scope(row offsets.Topic, found map[string]rebalance.Topic) stream.Scope {
	t := found[row.Name]
	grown := t.ID == row.ID && t.Partitions > row.Partitions
	if g.cfg.OnGrowth == GrowthWiden && len(g.cfg.Key) > 0 && (grown || row.Scope == stream.ScopeTopic) {
		return stream.ScopeTopic
	}
	return g.cfg.Scope
}

// read returns the rows of all topics the pipeline ever had.
func (g *migrator) read(ctx context.Context) ([]offsets.Topic, error) {
	tx, err := pgtx.Begin(ctx, g.conn, waiting())
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	if g.row, err = g.offsets.Find(ctx, tx, g.cfg.Pipeline, false); err != nil {
		return nil, err
	}
	return g.offsets.Topics(ctx, tx, g.row.ID, nil)
}

// keys counts those in the history of each topic.
func (g *migrator) keys(ctx context.Context) (map[stream.UUID]int64, error) {
	logs, err := g.log.Standings(ctx, g.conn, waiting(), g.row.ID)
	if err != nil {
		return nil, fmt.Errorf("count keys: %w", err)
	}
	keys := map[stream.UUID]int64{}
	for i := range logs {
		if logs[i].Open {
			keys[logs[i].Partition.Topic] += logs[i].Keys()
		}
	}
	return keys, nil
}

// apply carries the changes out, if the rows are still those that were read.
func (g *migrator) apply(ctx context.Context, changes []change, reason string) error {
	for i := range changes {
		c := &changes[i]
		if c.count == c.row.Partitions {
			continue
		}
		var err error
		if c.starts, err = rebalance.FirstOffsets(ctx, g.adm, c.row.Name, c.row.Partitions, c.count); err != nil {
			return fmt.Errorf("kafka: %w", err)
		}
	}
	err := pgtx.Do(ctx, g.conn, waiting(), func(tx *pgtx.Tx) error {
		row, err := g.offsets.Find(ctx, tx, g.cfg.Pipeline, true)
		switch {
		case err != nil:
			return err
		case !bytes.Equal(row.Generation, g.row.Generation):
			return ErrChanged
		}
		if err := g.change(ctx, tx, row.ID, changes, reason); err != nil {
			return err
		}
		return g.offsets.SetRule(ctx, tx, row.ID, g.cfg.generation(g.cfg.Scope, 0), g.cfg.rule().text())
	})
	if pgtx.Code(err) == pgtx.CodeChanged {
		err = fmt.Errorf("%w: %w", ErrChanged, err)
	}
	return err
}
