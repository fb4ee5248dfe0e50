package offsets

import (
	"time"

	"effectonce/internal/mutant"
	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Advance is one partition's step in a batch: Claim.Next is where its position
// must be now, To where it will be.
type Advance struct {
	Claim       stream.Claim
	Generation  []byte
	To          int64
	LeaderEpoch int32     // of the last record, -1 when unknown
	Newest      time.Time // newest record time, zero when the batch has none
}

// Fence is step 1 of a batch: it locks the positions in (topic id, partition)
// order, requires owner, next_offset and generation as expected, and advances. It
// raises pgtx.CodeFenced otherwise: the claim is stale, abandon it. xact receives
// the transaction id that step 4 compares.
func (s *Store) Fence(pipeline int64, advances []Advance, xact *string) pgtx.Statement {
	claims := make([]stream.Claim, len(advances))
	from, to := make([]int64, len(advances)), make([]int64, len(advances))
	epochs := make([]int32, len(advances))
	times := make([]time.Time, len(advances))
	generations := make([][]byte, len(advances))
	for i, a := range advances {
		claims[i], from[i], to[i], epochs[i], times[i] = a.Claim, a.Claim.Next, a.To, a.LeaderEpoch, a.Newest
		generations[i] = a.Generation
	}
	topics, numbers, lanes, owners := columns(claims)
	text := `SELECT @schema@.fence($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	if mutant.NoFence {
		text = unguarded
	}
	return pgtx.Statement{
		Step: pgtx.StepFence,
		SQL:  s.sql(text),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers), pgtx.Texts(lanes), pgtx.UUIDs(owners),
			pgtx.Byteas(generations), pgtx.Int8s(from), pgtx.Int8s(to), pgtx.Int4s(epochs), pgtx.Times(times),
		},
		Row: func(r pgtx.Row) error { return r.Scan(xact) },
	}
}
