package pipelinecmd

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/run"
	"effectonce/pkg/processor"
)

func adoptCommand() *cobra.Command {
	var apply bool
	var reason string
	cmd := &cobra.Command{
		Use:   "adopt",
		Short: "Accept the Kafka or Postgres cluster that is connected as the pipeline's own",
		Long: `Adopt is for a pipeline that was moved: a restored or upgraded database, a Kafka cluster
that took over the topics of another one with their offsets. Members refuse to run on a
cluster that the pipeline does not know, since its positions and keys may say nothing
there. You vouch that they do: that this database has the positions, the dedup log and
the effects of one moment, and that the topic's offsets are those they were made from.

Without --yes it is only shown. With it, a row in the table decisions says who, when and
why. Exit codes: 0 shown or done, 2 no --reason, 69 Kafka or the database is down.`,
	}
	s, out := cli.Bind(cmd), cli.BindOutput(cmd)
	cmd.Flags().BoolVar(&apply, "yes", false, "do it; without it the difference is shown")
	cmd.Flags().StringVar(&reason, "reason", "", "a `text` that is written down with the decision")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		cfg, err := run.Configured(s, cmd, args)
		if err != nil {
			return err
		}
		a, err := processor.Adopt(cmd.Context(), cfg, apply, reason)
		if err != nil {
			return run.Failure(err)
		}
		r := adoption{a, apply && !a.Empty()}
		if asJSON {
			return cli.WriteJSON(cmd.OutOrStdout(), r)
		}
		return r.write(cmd.OutOrStdout())
	}
	return cmd
}

// adoption is what the verb prints.
type adoption struct {
	processor.Adoption

	Done bool `json:"done"`
}

func (a adoption) write(w io.Writer) error {
	if a.Empty() {
		_, err := fmt.Fprintf(w, "pipeline %s is at home: nothing to adopt\n", a.Pipeline)
		return err
	}
	last := "with --yes and --reason the connected one becomes the pipeline's own; nothing was done"
	if a.Done {
		last = "done: members may start"
	}
	_, err := fmt.Fprintf(w, "pipeline %s\n  kafka cluster               %s\n  postgres system identifier  %s\n\n%s\n",
		a.Pipeline, arrow(a.From.Kafka, a.To.Kafka), arrow(a.From.Postgres, a.To.Postgres), last)
	return err
}
