package run

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
)

// Configured is the pipeline that the command line of a verb names. Its error carries
// the exit code.
func Configured(s *cli.Settings, cmd *cobra.Command, args []string) (processor.Config, error) {
	loaded, err := s.Load(cmd, args)
	if err != nil {
		return processor.Config{}, err
	}
	cfg, err := Pipeline(loaded.Config, zerolog.Nop())
	if err != nil {
		return processor.Config{}, exit.With(exit.Config, err)
	}
	return cfg, nil
}

// Failure gives the error of a decision about a pipeline its exit code and what to do
// next.
func Failure(err error) error {
	switch {
	case errors.Is(err, processor.ErrReason):
		return exit.With(exit.UsageError, fmt.Errorf("nothing was done: %w: add --reason", err))
	case errors.Is(err, processor.ErrChanged), errors.Is(err, offsets.ErrMoved):
		return exit.With(exit.Refused, fmt.Errorf("nothing was done: %w: look at the plan again", err))
	}
	code, err := Code(err)
	var dial *pgconn.ConnectError
	var network net.Error
	if code == exit.Failed && (errors.As(err, &dial) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded)) {
		code = exit.Unavailable
	}
	return exit.With(code, err)
}
