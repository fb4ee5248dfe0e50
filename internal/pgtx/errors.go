package pgtx

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// The SQLSTATEs raised by our own functions (migrations). Class EO is outside
// every class Postgres uses.
const (
	CodeFenced    = "EO001" // owner, next_offset or generation is not as expected: abandon the claim
	CodeLogMoved  = "EO002" // head_id is not the view's: learn and try again
	CodeOtherTx   = "EO003" // not the transaction of the fence: a COMMIT or ROLLBACK was smuggled in
	CodeLogClosed = "EO004" // the log is closed or of another generation
	CodeManifest  = "EO005" // the log's segments are not those that were read: read them again
	CodeSegment   = "EO006" // a segment is not there or without all its keys: build it again
	CodeChanged   = "EO007" // the topic's generation is not the one that was read: somebody else changed it
	CodeDamaged   = "EO008" // a log's runs are not those its row names: its keys cannot be moved
)

// StepError is an error with the step it happened in.
type StepError struct {
	Step Step
	Err  error
}

func (e *StepError) Error() string { return fmt.Sprintf("%s: %v", e.Step, e.Err) }
func (e *StepError) Unwrap() error { return e.Err }

// ErrCommitUnknown says that COMMIT was sent, or may have been, and no answer
// tells its outcome. The caller settles it by reading the position row under a
// row lock; COMMIT is never sent again.
var ErrCommitUnknown = errors.New("outcome of COMMIT is unknown")

// ErrNotCommitted says that the server answered COMMIT with a rollback: nothing
// of the transaction exists.
var ErrNotCommitted = errors.New("COMMIT was answered with a rollback")

// Code returns the SQLSTATE of err, empty if the server sent none.
func Code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Answered reports whether the server answered with severity ERROR: the
// statement failed and the session lives on. FATAL, PANIC and a broken
// connection are not answers.
func Answered(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.SeverityUnlocalized != "FATAL" && pg.SeverityUnlocalized != "PANIC" &&
		pg.Severity != "FATAL" && pg.Severity != "PANIC"
}
