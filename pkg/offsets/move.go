package offsets

import (
	"context"
	"errors"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Move is a decision about a position: where and whose it was when it was looked at,
// and where it is to be.
type Move struct {
	Partition   stream.Partition
	Owner       stream.UUID // as read; zero: unclaimed
	Generation  []byte
	From, To    int64
	LeaderEpoch int32 // that the log has up to To, -1 when unknown
	Mirror      int64 // the group's own commit, which may be ahead of the position from now on; -1: none
}

// ErrMoved says that the position, its owner or its meaning is not what the decision
// was made about, and that nothing was changed: look again.
var ErrMoved = errors.New("the position moved meanwhile")

// Move carries a decision out, in the caller's transaction: it waits for the
// transaction that has the position locked, moves it, takes it from its owner, so that
// every claim in flight is fenced, forgets the stop, and writes the decision down.
func (s *Store) Move(ctx context.Context, tx *pgtx.Tx, pipeline int64, m Move, d Decision) error {
	moved := false
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepFence,
		SQL: s.sql(`UPDATE @schema@.positions
			SET next_offset = $8, leader_epoch = $9, owner = NULL, holder = '',
			    rewound_from = greatest(rewound_from, next_offset, $10)
			WHERE pipeline = $1 AND topic_id = $2 AND partition = $3 AND lane = '' AND next_offset = $4
			  AND owner IS NOT DISTINCT FROM nullif($5, $6) AND generation = $7
			RETURNING true`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(m.Partition.Topic), pgtx.Int4(m.Partition.Number), pgtx.Int8(m.From),
			pgtx.UUID(m.Owner), pgtx.UUID(stream.UUID{}), pgtx.Bytea(m.Generation), pgtx.Int8(m.To), pgtx.Int4(m.LeaderEpoch),
			pgtx.Int8(m.Mirror),
		},
		Row: func(r pgtx.Row) error { return r.Scan(&moved) },
	})
	switch {
	case err != nil:
		return err
	case !moved:
		return ErrMoved
	}
	err = tx.Run(ctx, pgtx.Statement{
		Step:   pgtx.StepWrite,
		SQL:    s.sql(`DELETE FROM @schema@.stops WHERE pipeline = $1 AND topic_id = $2 AND partition = $3`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(m.Partition.Topic), pgtx.Int4(m.Partition.Number)},
	})
	if err != nil {
		return err
	}
	d.Topic, d.Partition = m.Partition.Topic, &m.Partition.Number
	return s.Decide(ctx, tx, pipeline, d)
}
