package run

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
	"effectonce/pkg/rebalance"
)

// What an operator must change first ends a run with 78, and says how.
func TestExitCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{nil, exit.OK, ""},
		{errors.New("anything"), exit.Failed, "anything"},
		{offsets.ErrTaken, exit.Config, "--share"},
		{processor.ErrGeneration, exit.Config, "another configuration"},
		{processor.ErrConfig, exit.Config, "configuration"},
		{rebalance.ErrNoTopic, exit.Config, "may not see it"},
		{&pgconn.PgError{Code: "28P01"}, exit.Config, "28P01"},
		{&pgconn.PgError{Code: "3D000"}, exit.Config, "3D000"},
		{&pgconn.PgError{Code: "57P01"}, exit.Failed, "57P01"},
	} {
		err := c.err
		if err != nil {
			err = fmt.Errorf("pipeline: %w", err)
		}
		err = exit.With(Code(err))
		if got := exit.Code(err); got != c.code || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: exit code %d, want %d and %q", err, got, c.code, c.says)
		}
	}
}
