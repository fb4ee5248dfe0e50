package offsets

import (
	"context"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Change is another generation for a topic.
type Change struct {
	Topic  stream.UUID
	From   []byte // the generation it must have now
	To     []byte
	Scope  stream.Scope
	Count  int32   // of partitions, not below the stored one
	Starts []int64 // of the partition numbers never seen: their first offsets
}

// ChangeGeneration gives a topic and all of its positions another generation, and
// takes them from their owners. It waits for every transaction that has a position
// locked. Change several topics in the order of their ids, and their logs in the
// same transaction. pgtx.CodeChanged means that somebody else has changed the topic:
// read its row again.
func (s *Store) ChangeGeneration(ctx context.Context, tx *pgtx.Tx, pipeline int64, c Change) error {
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepFence,
		SQL:  s.sql(`SELECT @schema@.change_generation($1, $2, $3, $4, $5, $6, $7)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(c.Topic), pgtx.Bytea(c.From), pgtx.Bytea(c.To), pgtx.Text(string(c.Scope)),
			pgtx.Int4(c.Count), pgtx.Int8s(append([]int64{}, c.Starts...)),
		},
	})
}

// Decision is what somebody decided about a pipeline, for people.
type Decision struct {
	Topic  stream.UUID
	Kind   string
	Reason string
	Detail []byte // JSON
}

// Decide writes a decision down, in the transaction that carries it out.
func (s *Store) Decide(ctx context.Context, tx *pgtx.Tx, pipeline int64, d Decision) error {
	return tx.Run(ctx, pgtx.Statement{
		Step:   pgtx.StepWrite,
		SQL:    s.sql(`INSERT INTO @schema@.decisions (pipeline, topic_id, kind, reason, detail) VALUES ($1, $2, $3, $4, $5)`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(d.Topic), pgtx.Text(d.Kind), pgtx.Text(d.Reason), pgtx.JSON(d.Detail)},
	})
}
