package processor

import (
	"errors"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtx"
)

// A pipeline that starts while the database fails over meets a standby: it waits, as
// one that runs does.
func TestAStandbyIsWaitedFor(t *testing.T) {
	t.Parallel()
	at := func(step pgtx.Step, code string) error {
		return fmt.Errorf("postgres: %w", &pgtx.StepError{Step: step, Err: &pgconn.PgError{Severity: "ERROR", Code: code}})
	}
	for _, err := range []error{at(pgtx.StepBegin, "0A000"), at(pgtx.StepBegin, "25006"), at(pgtx.StepBegin, "57P03")} {
		if !transient(err) {
			t.Errorf("%v ends the run", err)
		}
	}
	for _, err := range []error{at(pgtx.StepBegin, "42P01"), at(pgtx.StepEffect, "0A000"), at(pgtx.StepBegin, "28P01"), errors.New("any")} {
		if transient(err) {
			t.Errorf("%v is waited for", err)
		}
	}
}
