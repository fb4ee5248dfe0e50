package processor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
)

func TestVerdict(t *testing.T) {
	t.Parallel()
	code := func(c string) error { return &pgconn.PgError{Severity: "ERROR", Code: c} }
	for _, c := range []struct {
		step pgtx.Step
		err  error
		want Verdict
	}{
		// Our own guards.
		{pgtx.StepFence, code(pgtx.CodeFenced), Fenced},
		{pgtx.StepLog, code(pgtx.CodeLogMoved), LogMoved},
		{pgtx.StepLog, code(pgtx.CodeLogClosed), Fenced},
		{pgtx.StepLog, code(pgtx.CodeOtherTx), Stop},

		// Only the effect's own statement accuses a record.
		{pgtx.StepEffect, code("22001"), Isolate},
		{pgtx.StepEffect, code("22P02"), Isolate},
		{pgtx.StepEffect, code("23505"), Isolate},
		{pgtx.StepEffect, code("21000"), Isolate},
		{pgtx.StepEffect, code("44000"), Isolate},
		{pgtx.StepEffect, code("54001"), Isolate},
		{pgtx.StepEffect, code("P0001"), Isolate},
		{pgtx.StepEffect, code("P0002"), Stop},
		{pgtx.StepFence, code("23505"), Stop},
		{pgtx.StepLog, code("23505"), Stop},
		{pgtx.StepWrite, code("22021"), Stop},
		{pgtx.StepCommit, code("23505"), Stop}, // deferred constraints were checked before

		// A refused row or a missing right.
		{pgtx.StepEffect, code("42501"), Privilege},
		{pgtx.StepWrite, code("42501"), Stop},

		// The set-up.
		{pgtx.StepEffect, code("42703"), Reload},
		{pgtx.StepEffect, code("42P01"), Reload},
		{pgtx.StepEffect, code("3F000"), Reload},
		{pgtx.StepFence, code("42883"), Stop},
		{pgtx.StepFence, code("28000"), Stop},

		// The moment.
		{pgtx.StepBegin, code("28P01"), Retry}, // a password that is being changed
		{pgtx.StepBegin, code("28000"), Retry},
		{pgtx.StepBegin, code("08006"), Retry},
		{pgtx.StepBegin, code("0A000"), Retry}, // what PostgreSQL answers to BEGIN READ WRITE in recovery
		{pgtx.StepEffect, code("0A000"), Doubt},
		{pgtx.StepEffect, code("40P01"), Retry},
		{pgtx.StepCommit, code("40001"), Retry},
		{pgtx.StepEffect, code("53100"), Retry},
		{pgtx.StepFence, code("55P03"), Retry},
		{pgtx.StepEffect, code("57P01"), Retry},
		{pgtx.StepBegin, code("57P03"), Retry},
		{pgtx.StepEffect, code("58030"), Retry},
		{pgtx.StepEffect, code("25006"), Retry},
		{pgtx.StepCommit, code("25006"), Retry},
		{pgtx.StepEffect, code("57014"), Suspect},
		{pgtx.StepLog, code("57014"), Retry},
		{pgtx.StepFence, io.ErrUnexpectedEOF, Retry},
		{pgtx.StepEffect, io.ErrUnexpectedEOF, Retry},
		{pgtx.StepEffect, context.DeadlineExceeded, Retry}, // the batch's own limit, not the sink's

		// The sink's own words.
		{pgtx.StepEffect, &sink.HandlerError{Err: errors.New("no such account")}, Suspect},
		{pgtx.StepEffect, fmt.Errorf("apply: %w", sink.ErrTimeout), Suspect},
		{pgtx.StepEffect, sink.ErrTransactionControl, Stop},
		{pgtx.StepEffect, sink.ErrRowsOpen, Stop},
		{pgtx.StepEffect, sink.ErrRejection, Stop},
		{pgtx.StepWrite, pgtx.ErrEncode, Stop},

		// Nobody knows.
		{pgtx.StepCommit, fmt.Errorf("%w: %w", pgtx.ErrCommitUnknown, io.EOF), Unknown},
		{pgtx.StepCommit, fmt.Errorf("%w: %w", pgtx.ErrCommitUnknown, code("57P01")), Unknown},
		{pgtx.StepCommit, pgtx.ErrNotCommitted, Retry},
		{pgtx.StepEffect, code("XX000"), Doubt},
		{pgtx.StepEffect, code("0A000"), Doubt},
	} {
		// The transaction wraps what happened with its step; the verdict must not mind.
		for _, err := range []error{c.err, &pgtx.StepError{Step: c.step, Err: c.err}} {
			if got := verdict(c.step, err); got != c.want {
				t.Errorf("verdict(%s, %v) = %s, want %s", c.step, err, got, c.want)
			}
		}
	}
}

func TestSettlement(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		owner byte
		next  int64
		want  string
	}{
		{1, 20, "committed"},
		{1, 10, "rolled_back"},
		{1, 5, "went_back"},
		{2, 20, "fenced"}, // whoever moved on has applied it, or will
		{2, 10, "fenced"},
		{1, 30, "fenced"}, // nobody under this claim put it there
	} {
		if got := settlement(rowOf(c.owner, c.next), claimOf(1, 10), 20); got != c.want {
			t.Errorf("owner %d at %d: %s, want %s", c.owner, c.next, got, c.want)
		}
	}
}
