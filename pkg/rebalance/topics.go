package rebalance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"effectonce/pkg/stream"
)

// Topic is a topic as Kafka has it, with the scope and generation of its positions.
type Topic struct {
	ID         stream.UUID
	Name       string
	Partitions int32
	Scope      stream.Scope // in force
	Generation []byte
}

// ErrNoTopic says that a topic does not exist: create it, this program never does.
// Kafka answers the same to a principal that may not describe it.
var ErrNoTopic = errors.New("topic does not exist, or this principal may not see it")

// ErrNoTopicID says that the brokers are older than 3.1.
var ErrNoTopicID = errors.New("the brokers do not know topic ids: Kafka 3.1 or later is required")

// Find asks Kafka for the topics by name.
func Find(ctx context.Context, adm *kadm.Client, names []string) (cluster string, topics map[string]Topic, err error) {
	meta, err := adm.Metadata(ctx, names...)
	if err != nil {
		return "", nil, fmt.Errorf("topics: %w", err)
	}
	topics = map[string]Topic{}
	for _, name := range names {
		d, ok := meta.Topics[name]
		switch {
		case !ok || errors.Is(d.Err, kerr.UnknownTopicOrPartition):
			return "", nil, fmt.Errorf("%w: %q", ErrNoTopic, name)
		case d.Err != nil:
			return "", nil, fmt.Errorf("topic %q: %w", name, d.Err)
		case d.ID == kadm.TopicID{}:
			return "", nil, ErrNoTopicID
		}
		topics[name] = Topic{ID: stream.UUID(d.ID), Name: name, Partitions: int32(len(d.Partitions))}
	}
	return meta.Cluster, topics, nil
}

// Start is where a pipeline begins that has no rows yet.
type Start struct {
	Kind string    // earliest, latest, committed or time; empty is earliest if the group has no offsets
	Time time.Time // for time
}

func (s Start) String() string {
	if s.Kind == "time" {
		return s.Time.Format(time.RFC3339Nano)
	}
	if s.Kind == "" {
		return "earliest"
	}
	return s.Kind
}

// Errors of Starts. Both mean that nothing may be decided silently.
var (
	ErrOurOffsets = errors.New("the group has offsets of this pipeline, but the database has no positions: wrong or restored database")
	ErrGroupInUse = errors.New("the group already has offsets of another consumer")
)

// Starts resolves the start setting to one offset a partition, for all partitions
// of the topic at once.
func Starts(ctx context.Context, adm *kadm.Client, pipeline, group string, t Topic, s Start) ([]int64, error) {
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, fmt.Errorf("group offsets: %w", err)
	}
	if err := mayStart(committed[t.Name], pipeline, group, s); err != nil {
		return nil, err
	}
	first, err := adm.ListStartOffsets(ctx, t.Name)
	if err != nil {
		return nil, fmt.Errorf("start offsets: %w", err)
	}
	chosen := first
	switch s.Kind {
	case "latest":
		chosen, err = adm.ListEndOffsets(ctx, t.Name)
	case "time":
		chosen, err = adm.ListOffsetsAfterMilli(ctx, s.Time.UnixMilli(), t.Name)
	}
	if err != nil {
		return nil, fmt.Errorf("%s offsets: %w", s, err)
	}
	starts := make([]int64, t.Partitions)
	for n := range starts {
		o, ok := chosen.Lookup(t.Name, int32(n))
		if !ok {
			return nil, fmt.Errorf("%s offset: %w: %s/%d", s, errNoOffset, t.Name, n)
		}
		if o.Err != nil {
			return nil, fmt.Errorf("%s offset of %s/%d: %w", s, t.Name, n, o.Err)
		}
		starts[n] = o.Offset
		if c, ok := committed.Lookup(t.Name, int32(n)); ok && s.Kind == "committed" && c.At >= 0 {
			starts[n] = c.At
		}
	}
	return starts, nil
}

// FirstOffsets are the first offsets of a topic's partitions in [from, to).
func FirstOffsets(ctx context.Context, adm *kadm.Client, topic string, from, to int32) ([]int64, error) {
	listed, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("start offsets: %w", err)
	}
	var starts []int64
	for n := from; n < to; n++ {
		o, ok := listed.Lookup(topic, n)
		if !ok {
			return nil, fmt.Errorf("start offset: %w: %s/%d", errNoOffset, topic, n)
		}
		if o.Err != nil {
			return nil, fmt.Errorf("start offset of %s/%d: %w", topic, n, o.Err)
		}
		starts = append(starts, o.Offset)
	}
	return starts, nil
}

var errNoOffset = errors.New("Kafka did not answer for the partition") //nolint:staticcheck // a product's name

// mayStart looks at what the group has committed before any row exists. An offset
// that could not be read may be anybody's, so that is an error too.
func mayStart(committed map[int32]kadm.OffsetResponse, pipeline, group string, s Start) error {
	numbers := slices.Sorted(maps.Keys(committed))
	for _, n := range numbers {
		o := committed[n]
		if o.Err != nil {
			return fmt.Errorf("group offset of %s/%d: %w", o.Topic, n, o.Err)
		}
		if o.At >= 0 && o.Metadata == metadata(pipeline) {
			return fmt.Errorf("%w (group %q, topic %q)", ErrOurOffsets, group, o.Topic)
		}
	}
	for _, n := range numbers {
		if o := committed[n]; o.At >= 0 && s.Kind == "" {
			return fmt.Errorf("%w: group %q, topic %q, partition %d at %d; set kafka.start: committed to go on from there, or kafka.start: earliest to begin at the first record",
				ErrGroupInUse, group, o.Topic, n, o.At)
		}
	}
	return nil
}
