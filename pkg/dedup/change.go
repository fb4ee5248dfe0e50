package dedup

import (
	"context"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Change is another generation for the logs of a topic.
type Change struct {
	Topic      stream.UUID
	Generation []byte
	Scope      stream.Scope // one log for the topic, or one a partition
	Count      int32        // of partitions
	Keep       bool         // the keys mean the same in the new logs, and no two of them come from one; else they are forgotten
}

// LockLogs locks all logs of the topics that a transaction will change, in the order
// that commits lock them in. It comes behind the locks on the topics' positions.
func (s *Store) LockLogs(ctx context.Context, tx *pgtx.Tx, pipeline int64, topics []stream.UUID) error {
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepLog, SQL: s.sql(`SELECT @schema@.lock_logs($1, $2)`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUIDs(topics)},
	})
}

// ChangeLogs closes a topic's logs and opens those of its new scope, in the
// transaction that changes its generation: a commit on a closed log raises
// pgtx.CodeLogClosed. It returns the number of keys that were moved, or forgotten.
// pgtx.CodeDamaged means that the rows of a log cannot be moved: Verify says where.
func (s *Store) ChangeLogs(ctx context.Context, tx *pgtx.Tx, pipeline int64, c Change) (keys int64, err error) {
	err = tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL:  s.sql(`SELECT @schema@.change_logs($1, $2, $3, $4, $5, $6)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(c.Topic), pgtx.Bytea(c.Generation), pgtx.Text(string(c.Scope)), pgtx.Int4(c.Count),
			pgtx.Bool(c.Keep),
		},
		Row: func(r pgtx.Row) error { return r.Scan(&keys) },
	})
	return keys, err
}
