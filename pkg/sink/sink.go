package sink

import (
	"context"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Sink is the effect of a batch. Two implementations: Table and Handler.
//
// A Sink is used by all committers at once, each with a batch and a transaction
// of its own. Neither method begins, commits or keeps anything.
type Sink interface {
	// Encode prepares b.Records[from:] before any transaction: it adds one entry a
	// record to b.Ends, the rows to b.Encoded, and returns a fault for each record
	// it refuses (its row is empty). A record that b.Skip marks gets an empty row
	// and no fault; it is never among the picks.
	Encode(b *stream.Batch, from int) []stream.Fault

	// Apply performs the effect of the records at the indices picks, ascending,
	// in that order, inside tx. It may be called again for the same records or a
	// part of them, in this transaction behind a savepoint or in a later one.
	//
	// A fault says that its record must be dead-lettered; the caller rolls back to
	// where it was and applies the others. An error is that of the effect's own
	// statement, as *pgtx.StepError with pgtx.StepEffect, and is judged by
	// SQLSTATE; the transaction is then only good for a rollback.
	Apply(ctx context.Context, tx *pgtx.Tx, b *stream.Batch, picks []int) ([]stream.Fault, error)
}
