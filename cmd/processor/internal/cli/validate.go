package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/config"
)

// reach is how long a check waits for its dependency.
const reach = 10 * time.Second

// checks are what validate asks beside the settings, in this order.
func checks() []check { return []check{checkKafka, checkPostgres, checkRedis} }

func validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration, the broker, the database and the table; all faults at once",
		Long: `Check a configuration, then ask the broker and the database whether they fit it.
A Redis that does not answer is a warning: it is a cache.
Exit codes: 0 everything fits, 3 a check said no, 69 the broker or the database
did not answer within 10 s, 78 the configuration has faults.`,
	}
	settings, out := Bind(cmd), BindOutput(cmd)
	offline := cmd.Flags().Bool("offline", false, "ask neither the broker nor the database")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		loaded, err := settings.Load(cmd, args)
		r := &report{}
		var faults config.Faults
		switch {
		case errors.As(err, &faults):
			r.settings(faults)
		case err != nil:
			return err
		default:
			r.run(cmd.Context(), loaded, *offline)
			err = r.err()
		}
		r.OK = err == nil
		if asJSON {
			return errors.Join(err, WriteJSON(cmd.OutOrStdout(), r))
		}
		if rows := r.rows(); len(rows) > 0 {
			return errors.Join(err, WriteTable(cmd.OutOrStdout(), rows))
		}
		return err
	}
	return cmd
}

// run makes all checks, one after the other: their messages read better so,
// and the slowest answer within seconds.
func (r *report) run(ctx context.Context, l *config.Loaded, offline bool) {
	r.fine("settings", "pipeline %s, topics %s", l.Config.Pipeline, strings.Join(l.Config.Kafka.Topics, ", "))
	for _, w := range l.Warnings() {
		r.Findings = append(r.Findings, finding{State: stateWarning, About: w.Path, Where: w.Where, Message: w.Message})
	}
	if offline {
		return
	}
	for _, ask := range checks() {
		bounded, cancel := context.WithTimeout(ctx, reach)
		ask(bounded, l, r)
		cancel()
	}
}
