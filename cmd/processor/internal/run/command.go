package run

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/pgtx"
	"effectonce/migrations"
	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
	"effectonce/pkg/rebalance"
)

// Command is the verb run.
func Command() *cobra.Command {
	var migrate, share bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Run the pipeline: take part in the group and commit until a signal",
		Long: `Run joins the consumer group and commits records until it is told to stop.
The first SIGTERM or SIGINT finishes what is in flight and leaves the group; the
second ends the process at once. A dependency that is down is waited for.`,
	}
	settings := cli.Bind(cmd)
	cmd.Flags().BoolVar(&migrate, "migrate", false, "bring the schema up to date first (needs the owner's rights)")
	cmd.Flags().BoolVar(&share, "share", false, "permit a group, or a topic and table, that another pipeline uses")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		loaded, err := settings.Load(cmd, args)
		if err != nil {
			return err
		}
		logger := Logger(loaded.Config.Log)
		cfg, err := Pipeline(loaded.Config, logger)
		if err != nil {
			return exit.With(exit.Config, err)
		}
		cfg.Share = share
		if migrate {
			if err := up(cmd.Context(), cfg); err != nil {
				return err
			}
		}
		logger.Info().Str("pipeline", cfg.Pipeline).Strs("topics", cfg.Topics).Str("group", cfg.Group).
			Str("admin", cfg.Admin).Msg("starting")
		for _, w := range loaded.Warnings() {
			logger.Warn().Msg(w.String())
		}
		cache, err := openCache(cmd.Context(), loaded.Config.Redis, logger)
		if err != nil {
			return exit.With(exit.Config, err)
		}
		if cache != nil {
			defer func() { _ = cache.Close() }() // nothing is lost with it
			cfg.Cache = cache
		}
		return exit.With(Code(processor.Run(cmd.Context(), cfg)))
	}
	return cmd
}

// up migrates the schema before the run.
func up(ctx context.Context, cfg processor.Config) error {
	m, err := migrations.Open(ctx, cfg.Postgres.ConnConfig, cfg.Schema)
	if err != nil {
		return exit.With(exit.Unavailable, fmt.Errorf("postgres: %w", err))
	}
	_, err = m.Up(ctx)
	return errors.Join(err, m.Close())
}

// Code names the exit code for what ended a run or a change of a pipeline: what an
// operator must change first is a matter of configuration.
func Code(err error) (int, error) {
	var schema *migrations.OutOfRangeError
	code := pgtx.Code(err)
	switch {
	case errors.Is(err, offsets.ErrTaken):
		return exit.Config, fmt.Errorf("%w; run --share permits it", err)
	case strings.HasPrefix(code, "28"), code == "3D000": // a refused login, no such database
		return exit.Config, err
	case errors.As(err, &schema), errors.Is(err, migrations.ErrServerTooOld), errors.Is(err, rebalance.ErrNoTopic), errors.Is(err, rebalance.ErrNoTopicID),
		errors.Is(err, rebalance.ErrGroupInUse), errors.Is(err, rebalance.ErrOurOffsets), errors.Is(err, processor.ErrRecreated), errors.Is(err, processor.ErrGeneration),
		errors.Is(err, offsets.ErrOtherCluster), errors.Is(err, offsets.ErrOtherDatabase), errors.Is(err, offsets.ErrOtherGroup),
		errors.Is(err, processor.ErrConfig), errors.Is(err, offsets.ErrNoPipeline), errors.Is(err, rebalance.ErrInstance):
		return exit.Config, err
	}
	return exit.Failed, err
}
