package sink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Func is the user's own effect: it applies records inside tx and answers an
// error, or the records it refuses.
//
// The records come in offset order within each partition, those of several
// partitions one partition after another or mixed. The contract:
//
//   - Everything it does goes through tx, so that all of it happens once or not at
//     all. It may be called again with the same records or a part of them (a retry,
//     a search for the record that fails): what it does outside tx is repeated.
//   - It keeps nothing after it returns: not tx, not rows, not the records' bytes.
//   - It locks rows in the order of their keys, as every other transaction does
//     that meets them; it may sort records, the slice is its own.
//   - It touches none of this module's tables.
//   - An error means that nothing of this call stands. The database's errors are
//     judged by SQLSTATE, so they are returned as they are or wrapped with %w; any
//     other error is taken for the fault of a record, which is then searched for.
//   - A rejected record becomes a dead letter; the call is repeated without it.
//   - A record without a value (a tombstone) is handed over like any other.
type Func func(ctx context.Context, tx Tx, records []stream.Record) ([]Rejection, error)

// Rejection is a record that the handler refuses, by its coordinates.
type Rejection struct {
	Partition stream.Partition
	Offset    int64
	Reason    string // for people; it becomes the dead letter's detail
}

// Reject refuses r.
func Reject(r stream.Record, reason string) Rejection {
	return Rejection{r.Partition, r.Offset, reason}
}

// Errors of a handler that are its author's fault, never a record's: the caller
// stops visibly.
var (
	// ErrRowsOpen says that the handler returned with rows or a batch not read to
	// the end and not closed.
	ErrRowsOpen = errors.New("handler left rows or a batch open")
	// ErrRejection says that the handler rejected a record it was not given.
	ErrRejection = errors.New("handler rejected a record it was not given")
	// ErrExecMode says that the connection would prepare named statements, which
	// do not survive a transaction pooler.
	ErrExecMode = errors.New("connection needs another default_query_exec_mode")
)

// ErrTimeout says that the handler's time was up. The session is usually gone
// with it. Like a statement_timeout (57014) it is retried, and becomes a record's
// fault when it comes again and again.
var ErrTimeout = errors.New("handler took too long")

// HandlerError is what a handler answered in its own words: an error that is not
// the database's, or a panic. It is judged like a record's fault: isolate.
type HandlerError struct {
	Err   error
	Stack []byte // of a panic, else nil
}

func (e *HandlerError) Error() string { return "handler: " + e.Err.Error() }
func (e *HandlerError) Unwrap() error { return e.Err }

// Handler is the sink that calls a Func.
type Handler struct {
	call    Func
	timeout time.Duration
}

// NewHandler returns a sink that calls f, for at most timeout each time. The
// timeout lies below the transaction's idle limit, which would end the session.
func NewHandler(f Func, timeout time.Duration) *Handler { return &Handler{f, timeout} }

// Encode implements Sink: there is nothing to prepare, and nothing is refused.
func (h *Handler) Encode(b *stream.Batch, from int) []stream.Fault {
	b.Ends = b.Ends[:min(from, len(b.Ends))]
	for range len(b.Records) - len(b.Ends) {
		b.Ends = append(b.Ends, len(b.Encoded))
	}
	return nil
}

// Apply implements Sink.
func (h *Handler) Apply(ctx context.Context, tx *pgtx.Tx, b *stream.Batch, picks []int) ([]stream.Fault, error) {
	if len(picks) == 0 {
		return nil, nil
	}
	records := make([]stream.Record, len(picks))
	for i, pick := range picks {
		records[i] = b.Records[pick]
	}
	limited, cancel := context.WithTimeoutCause(ctx, h.timeout, ErrTimeout)
	defer cancel()

	s := newSession(tx.Conn())
	rejected, err := h.invoke(limited, Tx{s}, records)
	if err = s.finish(limited, err); err != nil {
		return nil, &pgtx.StepError{Step: pgtx.StepEffect, Err: err}
	}
	faults, err := rejections(b, picks, rejected)
	if err != nil {
		return nil, &pgtx.StepError{Step: pgtx.StepEffect, Err: err}
	}
	return faults, nil
}

// invoke calls the handler and turns a panic into an error.
func (h *Handler) invoke(ctx context.Context, tx Tx, records []stream.Record) (rejected []Rejection, err error) {
	defer func() {
		if p := recover(); p != nil {
			rejected, err = nil, panicked(p)
		}
	}()
	return h.call(ctx, tx, records)
}

// rejections turns coordinates into indexes of the batch. Of several for one
// record the first counts.
func rejections(b *stream.Batch, picks []int, rejected []Rejection) ([]stream.Fault, error) {
	if len(rejected) == 0 {
		return nil, nil
	}
	type coordinates struct {
		partition stream.Partition
		offset    int64
	}
	index := make(map[coordinates]int, len(picks))
	for _, pick := range picks {
		r := &b.Records[pick]
		index[coordinates{r.Partition, r.Offset}] = pick
	}
	told := make(map[int]bool, len(rejected))
	var faults []stream.Fault
	for _, r := range rejected {
		pick, ok := index[coordinates{r.Partition, r.Offset}]
		if !ok {
			return nil, fmt.Errorf("%w: partition %s, offset %d", ErrRejection, r.Partition, r.Offset)
		}
		if !told[pick] {
			told[pick] = true
			faults = append(faults, stream.Fault{Index: pick, Stage: stream.StageEffect, Reason: "rejected", Detail: r.Reason})
		}
	}
	return faults, nil
}
