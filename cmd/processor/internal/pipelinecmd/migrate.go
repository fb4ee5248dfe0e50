// Package pipelinecmd changes what a pipeline's commits mean, and where it lives.
package pipelinecmd

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/run"
	"effectonce/pkg/processor"
)

// Command is the verb pipeline with its own verbs.
func Command() *cobra.Command {
	cmd := cli.Group("pipeline", "Change what a pipeline's commits mean, or where it lives")
	cmd.AddCommand(migrateCommand(), adoptCommand())
	return cmd
}

func migrateCommand() *cobra.Command {
	var m processor.Migration
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Change a pipeline's key rule or scope to the configured one; without --yes the plan is printed",
		Long: `Migrate compares what the pipeline's rows were made for with the configuration: key,
key_missing, scope, and in scope partition the number of partitions. With --yes it
changes all topics of the pipeline in one transaction. Positions stay where they are.
Keys that mean the same are kept: always when scope: partition becomes scope: topic.
Others are forgotten, which --forget-keys must permit: a record whose key was applied
before is applied again if it comes again.

Members may run meanwhile. Those of the old configuration stop at their next commit,
with the cause generation; those of the new one refuse to start before.
Exit codes: 0 the plan was printed or carried out, 3 keys would be forgotten or
somebody else was quicker, 69 Kafka or the database is down.`,
	}
	s, out := cli.Bind(cmd), cli.BindOutput(cmd)
	cmd.Flags().BoolVar(&m.Apply, "yes", false, "do it; without it the plan is printed")
	cmd.Flags().BoolVar(&m.Forget, "forget-keys", false, "permit that keys of the old rule are forgotten")
	cmd.Flags().StringVar(&m.Reason, "reason", "", "a `text` that is written down with the decision")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		cfg, err := run.Configured(s, cmd, args)
		if err != nil {
			return err
		}
		plan, err := processor.Migrate(cmd.Context(), cfg, m)
		if plan.Pipeline == "" { // it was not even made
			return failure(err)
		}
		r := result{plan, m.Apply && err == nil && !plan.Empty()}
		if asJSON {
			return errors.Join(cli.WriteJSON(cmd.OutOrStdout(), r), failure(err))
		}
		return errors.Join(r.write(cmd.OutOrStdout()), failure(err))
	}
	return cmd
}

// failure gives an error its exit code and what to do next.
func failure(err error) error {
	if errors.Is(err, processor.ErrForgets) {
		return exit.With(exit.Refused, fmt.Errorf("nothing was done: %w: add --forget-keys to permit it", err))
	}
	return run.Failure(err)
}

// result is what the verb prints.
type result struct {
	processor.Plan

	Done bool `json:"done"`
}

func (r result) write(w io.Writer) error {
	if r.Empty() {
		_, err := fmt.Fprintf(w, "pipeline %s: nothing to change: %s\n", r.Pipeline, r.To)
		return err
	}
	text := fmt.Sprintf("pipeline %s: %s\n", r.Pipeline, r.To)
	if r.From != r.To {
		text = fmt.Sprintf("pipeline %s\n  from  %s\n  to    %s\n", r.Pipeline, r.From, r.To)
	}
	if _, err := fmt.Fprintln(w, text); err != nil {
		return err
	}
	rows := [][]string{{"TOPIC", "SCOPE", "PARTITIONS", "KEYS", "THEY ARE"}}
	for _, t := range r.Topics {
		rows = append(rows, []string{
			t.Topic, arrow(t.From.Scope, t.To.Scope), arrow(t.From.Partitions, t.To.Partitions), fmt.Sprint(t.Keys),
			map[bool]string{true: "kept", false: "forgotten"}[t.Kept],
		})
	}
	if len(rows) > 1 {
		if err := cli.WriteTable(w, rows); err != nil {
			return err
		}
	}
	_, err := fmt.Fprint(w, "\n", r.advice())
	return err
}

func arrow[T comparable](from, to T) string {
	if from == to {
		return fmt.Sprint(from)
	}
	return fmt.Sprintf("%v -> %v", from, to)
}

// advice says what becomes of members, and what to do next.
func (r result) advice() string {
	if r.Done {
		return `done: start members with this configuration; those of the old one stop with the cause
generation and must be restarted with it
`
	}
	text := `with --yes, in one transaction: positions stay; members of the old configuration stop
with the cause generation and must be restarted with this one; members of this
configuration refuse to start before
`
	if r.Forgets() {
		text += `keys that are forgotten need --forget-keys: a record that comes again from before the
change is applied again. scope: topic under the same key keeps all of them
`
	}
	return text + "nothing was done\n"
}
