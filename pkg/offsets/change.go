package offsets

import (
	"context"
	"errors"

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

// Adopt makes a Kafka and a Postgres cluster the pipeline's own.
func (s *Store) Adopt(ctx context.Context, tx *pgtx.Tx, pipeline int64, cluster string, system int64) error {
	return tx.Run(ctx, pgtx.Statement{
		Step:   pgtx.StepWrite,
		SQL:    s.sql(`UPDATE @schema@.pipelines SET cluster_id = $2, system_identifier = $3 WHERE id = $1`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.Text(cluster), pgtx.Int8(system)},
	})
}

// Decision is what somebody decided about a pipeline, for people.
type Decision struct {
	Topic     stream.UUID // zero when it concerns the pipeline
	Partition *int32      // nil when it concerns more than one
	Kind      string
	Reason    string
	Detail    []byte // JSON
}

// Decide writes a decision down, in the transaction that carries it out.
func (s *Store) Decide(ctx context.Context, tx *pgtx.Tx, pipeline int64, d Decision) error {
	numbers := []int32{} // none: its first element is null
	if d.Partition != nil {
		numbers = append(numbers, *d.Partition)
	}
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`INSERT INTO @schema@.decisions (pipeline, topic_id, partition, kind, reason, detail)
			VALUES ($1, nullif($2, '00000000-0000-0000-0000-000000000000'), $3[1], $4, $5, $6)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(d.Topic), pgtx.Int4s(numbers), pgtx.Text(d.Kind), pgtx.Text(d.Reason), pgtx.JSON(d.Detail),
		},
	})
}

// ErrNoPipeline says that no member of the pipeline has ever started: it has no rows.
var ErrNoPipeline = errors.New("the pipeline has never started: it has no rows")

// Find returns the pipeline's row. With lock no member can start, and nobody else
// change the rule, before the transaction is over.
func (s *Store) Find(ctx context.Context, tx *pgtx.Tx, name string, lock bool) (Pipeline, error) {
	p := Pipeline{Name: name}
	text := `SELECT id, salt, generation, group_name, cluster_id, system_identifier, settings::text
		FROM @schema@.pipelines WHERE name = $1`
	if lock {
		text += ` FOR UPDATE`
	}
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin, SQL: s.sql(text), Params: []pgtx.Param{pgtx.Text(name)}, Row: p.scan,
	})
	if err == nil && p.ID == 0 {
		err = ErrNoPipeline
	}
	return p, err
}

// SetRule writes down what the pipeline's commits mean from now on, in the
// transaction that changes all of its topics.
func (s *Store) SetRule(ctx context.Context, tx *pgtx.Tx, pipeline int64, generation []byte, settings string) error {
	return tx.Run(ctx, pgtx.Statement{
		Step:   pgtx.StepFence,
		SQL:    s.sql(`UPDATE @schema@.pipelines SET generation = $2, settings = $3::jsonb WHERE id = $1`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.Bytea(generation), pgtx.Text(settings)},
	})
}
