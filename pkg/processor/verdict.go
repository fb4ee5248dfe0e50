package processor

import (
	"errors"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/sink"
)

// Verdict is what to do about an error of a batch's transaction.
type Verdict string

// The verdicts.
const (
	Retry     Verdict = "retry"     // the batch as it is, after a wait
	LogMoved  Verdict = "log_moved" // catch the view up and check again
	Fenced    Verdict = "fenced"    // the claim is stale: abandon it
	Isolate   Verdict = "isolate"   // a record's fault: find it
	Suspect   Verdict = "suspect"   // perhaps a record's fault: isolate after suspectAfter times
	Privilege Verdict = "privilege" // a refused row or a missing right: ask the catalog which
	Reload    Verdict = "reload"    // read the catalog once more; again: stop
	Stop      Verdict = "stop"      // the set-up's fault, or our bug: stop visibly
	Doubt     Verdict = "doubt"     // an unknown code: some retries, then stop
	Unknown   Verdict = "unknown"   // nobody knows whether COMMIT happened: read the position row
)

// suspectAfter and doubtAfter are how often a batch may fail before a suspicion
// becomes an isolation, and an unknown code a stop.
const (
	suspectAfter = 3
	doubtAfter   = 5
)

// certain are the codes that mean one thing at every step.
var certain = map[string]Verdict{
	pgtx.CodeFenced:    Fenced,
	pgtx.CodeLogClosed: Fenced,
	pgtx.CodeLogMoved:  LogMoved,
	pgtx.CodeOtherTx:   Stop,
	"25006":            Retry, // read-only: a demoted primary
}

// verdict judges err, raised at step of a batch's transaction, by step, type and
// SQLSTATE, never by text. Only the effect's own statement may accuse a record: a
// unique violation on our own tables is our bug.
func verdict(step pgtx.Step, err error) Verdict {
	code := pgtx.Code(err)
	switch {
	case errors.Is(err, pgtx.ErrCommitUnknown):
		return Unknown
	case errors.Is(err, errOvertaken), errors.Is(err, dedup.ErrDropView):
		return LogMoved
	case errors.Is(err, pgtx.ErrEncode), errors.Is(err, sink.ErrTransactionControl), errors.Is(err, sink.ErrRowsOpen),
		errors.Is(err, sink.ErrRejection), errors.Is(err, sink.ErrExecMode):
		return Stop
	case code == "" && step == pgtx.StepEffect && blamesRecord(err):
		return Suspect
	case code == "":
		return Retry // the connection, not an answer
	}
	if v, ok := certain[code]; ok {
		return v
	}
	switch code {
	case "0A000": // a standby does not know BEGIN READ WRITE: the same, before its first statement
		if step == pgtx.StepBegin {
			return Retry
		}
	case "57014": // statement timeout or cancel
		if step == pgtx.StepEffect {
			return Suspect
		}
		return Retry
	}
	switch class := code[:2]; class {
	case "08", "40", "53", "55", "57", "58":
		return Retry
	case "28": // a refused login, while the password is changed: new connections meet it
		if step == pgtx.StepBegin {
			return Retry
		}
		return Stop
	case "42", "3F":
		switch {
		case step != pgtx.StepEffect:
			return Stop
		case code == "42501":
			return Privilege
		default:
			return Reload
		}
	case "22", "23", "21", "44", "54", "P0":
		if step == pgtx.StepEffect && (class != "P0" || code == "P0001") {
			return Isolate
		}
		return Stop
	}
	return Doubt
}

// blamesRecord tells errors that a sink made itself from those of the connection
// under it: a handler's own error, its panic, its time limit.
func blamesRecord(err error) bool {
	var own *sink.HandlerError
	return errors.As(err, &own) || errors.Is(err, sink.ErrTimeout)
}
