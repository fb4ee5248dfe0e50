package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// PartitionState is how a partition stands, as far as Postgres and Kafka tell.
type PartitionState string

// The states of a partition.
const (
	PartitionRunning   PartitionState = "running"   // claimed, and not stopped
	PartitionStopped   PartitionState = "stopped"   // by its member, until somebody decides
	PartitionUnclaimed PartitionState = "unclaimed" // no member has taken it over, ever or since it was decided about
	PartitionMissing   PartitionState = "missing"   // it has no position
	PartitionGone      PartitionState = "gone"      // its topic was deleted, or deleted and created again
)

// PartitionStatus is one partition of a pipeline. Offsets are -1 where they are not
// known.
type PartitionStatus struct {
	Topic     string           `json:"topic"`
	Partition int32            `json:"partition"`
	State     PartitionState   `json:"state"`
	Position  int64            `json:"position"`
	Start     int64            `json:"log_start"`
	End       int64            `json:"log_end"`
	Lag       int64            `json:"lag"`
	Epoch     int64            `json:"epoch"`
	Holder    string           `json:"holder"` // host and pid of the last owner
	Last      time.Time        `json:"last_record_time,omitzero"`
	Since     time.Time        `json:"stopped_since,omitzero"`
	Cause     string           `json:"cause,omitempty"`
	What      string           `json:"what,omitempty"`
	Lost      *rebalance.Range `json:"lost,omitempty"`
	Next      string           `json:"next,omitempty"` // what to do
}

// PartitionList is all partitions of a pipeline.
type PartitionList struct {
	Pipeline   string            `json:"pipeline"`
	Kafka      string            `json:"kafka_error,omitempty"` // why Kafka's side is missing
	Partitions []PartitionStatus `json:"partitions"`
}

// Partitions looks at all partitions of a pipeline. While Kafka does not answer the list
// is what Postgres knows.
func Partitions(ctx context.Context, cfg Config) (PartitionList, error) {
	at, err := sit(ctx, cfg)
	if err != nil {
		return PartitionList{}, err
	}
	defer at.leave(ctx)
	rows, err := at.standings(ctx)
	if err != nil {
		return PartitionList{}, fmt.Errorf("pipeline %q: %w", at.cfg.Pipeline, err)
	}
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	k, err := askKafka(limited, at.adm, at.cfg.Topics, rows)
	list := PartitionList{Pipeline: at.cfg.Pipeline, Partitions: []PartitionStatus{}}
	if err != nil {
		list.Kafka = oneLine(err)
	}
	for _, row := range newest(rows, k.topics) {
		list.Partitions = append(list.Partitions, k.status(row))
	}
	return list, nil
}

// standings reads the partitions of the pipeline's topics, by topic and number, with
// those that have no rows but should.
func (d *desk) standings(ctx context.Context) (rows []offsets.Standing, err error) {
	tx, err := pgtx.Begin(ctx, d.conn, waiting())
	if err != nil {
		return nil, err
	}
	defer tx.Rollback(ctx)
	store := offsets.New(d.cfg.Schema)
	row, err := store.Find(ctx, tx, d.cfg.Pipeline, false)
	if err != nil {
		return nil, err
	}
	topics, err := store.Topics(ctx, tx, row.ID, d.cfg.Topics)
	if err != nil {
		return nil, err
	}
	known := map[stream.Partition]offsets.Standing{}
	err = tx.Run(ctx, store.Standings(row.ID, d.cfg.Topics, func(s offsets.Standing) { known[s.Partition] = s }))
	for _, t := range topics {
		count := t.Partitions
		for p := range known { // more than it began with, and none of their positions: stopped
			if p.Topic == t.ID {
				count = max(count, p.Number+1)
			}
		}
		for n := range count {
			p := stream.Partition{Topic: t.ID, Number: n}
			s, ok := known[p]
			if !ok {
				s = offsets.Standing{Topic: t, Partition: p}
			}
			rows = append(rows, s)
		}
	}
	return rows, err
}

// newest leaves out the rows of topics that were replaced: of those with one name the
// one that Kafka has counts, or else the last.
func newest(rows []offsets.Standing, topics map[string]rebalance.Topic) (out []offsets.Standing) {
	shown := map[string]stream.UUID{}
	for _, row := range rows {
		if t, ok := topics[row.Topic.Name]; ok && shown[row.Topic.Name] == t.ID {
			continue
		}
		shown[row.Topic.Name] = row.Topic.ID
	}
	for _, row := range rows {
		if shown[row.Topic.Name] == row.Topic.ID {
			out = append(out, row)
		}
	}
	return out
}

// kafkaSide is what Kafka says about a pipeline's topics.
type kafkaSide struct {
	answered bool
	topics   map[string]rebalance.Topic // that exist
	extents  map[rebalance.Name]rebalance.Extent
}

func askKafka(ctx context.Context, adm *kadm.Client, names []string, rows []offsets.Standing) (kafkaSide, error) {
	k := kafkaSide{topics: map[string]rebalance.Topic{}}
	for _, name := range names {
		_, found, err := rebalance.Find(ctx, adm, []string{name})
		switch {
		case errors.Is(err, rebalance.ErrNoTopic):
		case err != nil:
			return k, err
		default:
			k.topics[name] = found[name]
		}
	}
	epochs := map[rebalance.Name]int32{}
	for _, row := range rows {
		if row.Topic.ID == k.topics[row.Topic.Name].ID {
			epochs[rebalance.Name{Topic: row.Topic.Name, Number: row.Partition.Number}] = row.Leader
		}
	}
	var err error
	k.extents, err = rebalance.Extents(ctx, adm, epochs)
	k.answered = err == nil
	return k, err
}

// status puts the two sides together.
func (k kafkaSide) status(row offsets.Standing) PartitionStatus {
	n := rebalance.Name{Topic: row.Topic.Name, Number: row.Partition.Number}
	s := PartitionStatus{
		Topic: n.Topic, Partition: n.Number, State: PartitionRunning, Position: row.Next, Start: -1, End: -1, Lag: -1,
		Epoch: row.Epoch, Holder: row.Holder, Last: row.Last,
	}
	switch {
	case !row.Exists:
		s.State, s.Position = PartitionMissing, -1
		s.Cause, s.What, s.Next = "missing_position", "it has no position row: a wrong or restored database", "connect the right database"
	case row.Owner == (stream.UUID{}):
		s.State = PartitionUnclaimed
	}
	if x, ok := k.extents[n]; ok {
		s.Start, s.End = x.Start, x.End
		if row.Exists {
			s.Lag = max(x.End-row.Next, 0)
			s.because(rebalance.Lost(n, row.Next, x))
		}
	}
	if row.Stop.Code != "" {
		s.State, s.Since = PartitionStopped, row.Stop.Since
		if s.Lost == nil {
			s.Cause, s.What, s.Next = row.Stop.Code, row.Stop.Text, row.Stop.Fix
		}
	}
	if k.answered && row.Topic.ID != k.topics[n.Topic].ID {
		c := rebalance.Recreated(n.Topic)
		s.State = PartitionGone
		s.Cause, s.What, s.Next = c.Code, c.Text, c.Fix
	}
	return s
}

// because notes what Kafka does not have any more.
func (s *PartitionStatus) because(c rebalance.Cause, _ int64) {
	if c.Code != "" {
		s.Cause, s.What, s.Next, s.Lost = c.Code, c.Text, c.Fix, &c.Lost
	}
}
