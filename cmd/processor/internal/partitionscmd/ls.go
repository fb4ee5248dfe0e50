package partitionscmd

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/run"
	"effectonce/pkg/processor"
)

func lsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "Show each partition: position, log, lag, holder, state, and what to do about one that stands still",
		Long: `Ls puts together what Postgres and Kafka know of each partition of the pipeline. It asks
no member. States: running (a member has taken it over and has not stopped it), stopped,
unclaimed (nobody has taken it over since it was created or decided about), missing (it has
no position), gone (its topic was deleted, or deleted and created again). While Kafka does
not answer, it says so and shows what Postgres knows.
Exit codes: 0 shown, 69 the database is down.`,
	}
	s, out := cli.Bind(cmd), cli.BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		cfg, err := run.Configured(s, cmd, args)
		if err != nil {
			return err
		}
		list, err := processor.Partitions(cmd.Context(), cfg)
		if err != nil {
			return run.Failure(err)
		}
		if asJSON {
			return cli.WriteJSON(cmd.OutOrStdout(), list)
		}
		return write(cmd.OutOrStdout(), list)
	}
	return cmd
}

// write prints a line a partition, and below them why some stand still.
func write(w io.Writer, list processor.PartitionList) error {
	rows := [][]string{{"PARTITION", "STATE", "POSITION", "LOG", "LAG", "EPOCH", "HOLDER", "LAST RECORD", "CAUSE"}}
	for _, p := range list.Partitions {
		log := "?"
		if p.End >= 0 {
			log = fmt.Sprintf("[%d, %d)", p.Start, p.End)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%s/%d", p.Topic, p.Partition), string(p.State), known(p.Position), log, known(p.Lag), fmt.Sprint(p.Epoch),
			or(p.Holder, "-"), at(p.Last), or(p.Cause, "-"),
		})
	}
	err := cli.WriteTable(w, rows)
	for _, p := range list.Partitions {
		if p.Cause == "" {
			continue
		}
		since := ""
		if !p.Since.IsZero() {
			since = ", stopped since " + at(p.Since)
		}
		_, werr := fmt.Fprintf(w, "\n%s/%d%s: %s: %s\n", p.Topic, p.Partition, since, p.Cause, p.What)
		if p.Next != "" && werr == nil {
			_, werr = fmt.Fprintf(w, "  %s\n", p.Next)
		}
		err = errors.Join(err, werr)
	}
	if list.Kafka != "" {
		_, werr := fmt.Fprintf(w, "\nKafka does not answer, this is what Postgres knows: %s\n", list.Kafka)
		err = errors.Join(err, werr)
	}
	return err
}

func known(n int64) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

func at(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format(time.RFC3339)
}

func or(s, empty string) string {
	if s == "" {
		return empty
	}
	return s
}
