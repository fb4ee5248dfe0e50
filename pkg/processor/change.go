package processor

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json" //nolint:depguard // a decision, never a record
	"slices"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// change is another generation for one topic of a pipeline.
type change struct {
	row    offsets.Topic // as it was read
	scope  stream.Scope
	count  int32   // of partitions
	starts []int64 // of those never seen
	rule   rule    // the configured one
	keep   bool    // the keys: they mean the same
	keys   int64   // kept or forgotten
}

func (c *change) generation() []byte { return c.rule.generation(c.scope, c.count) }

// keeps reports whether the keys under a topic's row mean the same under another
// rule: it is the same key rule, and every new log has all keys that a record of it
// may repeat. made is what the pipeline's row says it was made with; the digest tells
// whether this topic was.
func keeps(row offsets.Topic, made, next rule, scope stream.Scope, count int32) bool {
	proven := bytes.Equal(row.Generation, made.generation(row.Scope, row.Partitions))
	whole := scope == stream.ScopeTopic || row.Scope == stream.ScopePartition && row.Partitions == count
	return proven && whole && slices.Equal(made.Key, next.Key)
}

// stores are the two that a change goes through.
type stores struct {
	offsets *offsets.Store
	log     *dedup.Store
}

// change gives topics another generation in the caller's transaction: all of their
// positions are locked and taken from their owners, then all of their logs are locked
// and closed, each in the order of every commit. Behind it nothing of an old claim
// can commit. pgtx.CodeChanged means that somebody else has changed a topic.
func (s stores) change(ctx context.Context, tx *pgtx.Tx, pipeline int64, list []change, reason string) error {
	slices.SortFunc(list, func(a, b change) int { return bytes.Compare(a.row.ID[:], b.row.ID[:]) })
	topics := make([]stream.UUID, len(list))
	for i, c := range list {
		topics[i] = c.row.ID
		err := s.offsets.ChangeGeneration(ctx, tx, pipeline, offsets.Change{
			Topic: c.row.ID, From: c.row.Generation, To: c.generation(), Scope: c.scope, Count: c.count, Starts: c.starts,
		})
		if err != nil {
			return err
		}
	}
	if err := s.log.LockLogs(ctx, tx, pipeline, topics); err != nil {
		return err
	}
	for i := range list {
		c := &list[i]
		var err error
		c.keys, err = s.log.ChangeLogs(ctx, tx, pipeline, dedup.Change{
			Topic: c.row.ID, Generation: c.generation(), Scope: c.scope, Count: c.count, Keep: c.keep,
		})
		if err == nil {
			err = s.offsets.Decide(ctx, tx, pipeline, c.decision(reason))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decision is what is written down about it.
func (c *change) decision(reason string) offsets.Decision {
	d := offsets.Decision{Topic: c.row.ID, Kind: "change", Reason: reason}
	if c.keep && c.row.Scope == stream.ScopePartition && c.scope == stream.ScopeTopic {
		d.Kind = "widen"
	}
	d.Detail, _ = json.Marshal(map[string]any{ //nolint:errchkjson // strings and numbers: never fails
		"from": state{c.row.Scope, c.row.Partitions, hex.EncodeToString(c.row.Generation)},
		"to":   state{c.scope, c.count, hex.EncodeToString(c.generation())},
		"rule": c.rule, "keys": c.keys, "kept": c.keep,
	})
	return d
}

// state is one side of a change.
type state struct {
	Scope      stream.Scope `json:"scope"`
	Partitions int32        `json:"partitions"`
	Generation string       `json:"generation"`
}
