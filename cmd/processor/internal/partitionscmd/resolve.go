package partitionscmd

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/run"
	"effectonce/pkg/processor"
)

func resolveCommand() *cobra.Command {
	var r processor.Resolution
	var accept bool
	cmd := &cobra.Command{
		Use:   "resolve TOPIC/PARTITION",
		Short: "Decide where a partition goes on; without --yes the plan is printed",
		Long: `Resolve moves the position of one partition, in one transaction, and takes it from its
owner: whatever is in flight is fenced, and the member that holds the partition goes on
from there by itself, also a stopped one. With --yes and --reason it is done, and a row in
the table decisions has the old and the new position.

--accept-loss goes on at the nearest offset that Kafka has: the log's start when the
position lies below it, the place where the logs part when the log was cut, the log's end
when the position lies beyond it. It is refused where nothing is lost.
--rewind-to N goes on at N, at or below the position. Business keys make repeats
harmless; where they cannot, a permission is asked for. At the position itself it has a
stopped partition tried again.
Nothing that Kafka has is ever skipped.

Exit codes: 0 the plan was printed or carried out, 2 no --reason, 3 refused or the position
moved meanwhile, 69 Kafka or the database is down.`,
	}
	s, out := cli.Bind(cmd), cli.BindOutput(cmd)
	cmd.Use, cmd.Args, cmd.ValidArgsFunction = "resolve TOPIC/PARTITION", cobra.ExactArgs(1), cobra.NoFileCompletions
	f := cmd.Flags()
	f.BoolVar(&accept, "accept-loss", false, "go on at the nearest offset that Kafka has")
	f.Int64Var(&r.To, "rewind-to", -1, "go on at this `OFFSET`")
	f.BoolVar(&r.Again, "apply-again", false, "permit that records are applied again, where their keys are not known any more")
	f.BoolVar(&r.Keyless, "skip-keyless", false, "permit that records without a key behind a truncation are taken for those that were there before")
	f.BoolVar(&r.Apply, "yes", false, "do it; without it the plan is printed")
	f.StringVar(&r.Reason, "reason", "", "a `text` that is written down with the decision")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		if r.Topic, r.Partition, err = partition(args[0]); err != nil {
			return exit.With(exit.UsageError, err)
		}
		if accept == cmd.Flags().Changed("rewind-to") {
			return exit.With(exit.UsageError, errors.New("what is decided? Give --accept-loss or --rewind-to OFFSET"))
		}
		r.Verb = processor.Rewind
		if accept {
			r.Verb = processor.AcceptLoss
		}
		cfg, err := run.Configured(s, cmd, nil)
		if err != nil {
			return err
		}
		plan, err := processor.Resolve(cmd.Context(), cfg, r)
		if plan.Pipeline == "" { // it was not even made
			return failure(err)
		}
		res := resolved{plan, r.Apply && err == nil}
		if asJSON {
			return errors.Join(cli.WriteJSON(cmd.OutOrStdout(), res), failure(err))
		}
		return errors.Join(res.write(cmd.OutOrStdout()), failure(err))
	}
	return cmd
}

// partition reads TOPIC/PARTITION.
func partition(arg string) (topic string, number int32, err error) {
	at := strings.LastIndexByte(arg, '/')
	if at <= 0 {
		return "", 0, fmt.Errorf("which partition? %q is not TOPIC/PARTITION", arg)
	}
	n, err := strconv.ParseInt(arg[at+1:], 10, 32)
	if err != nil || n < 0 {
		return "", 0, fmt.Errorf("which partition? %q is not a partition's number", arg[at+1:])
	}
	return arg[:at], int32(n), nil
}

// failure gives an error its exit code and what to do next.
func failure(err error) error {
	permit := map[error]string{
		processor.ErrAgain:       ": --apply-again permits it",
		processor.ErrKeyless:     ": --skip-keyless permits it",
		processor.ErrNothingLost: "",
		processor.ErrOutside:     "",
		processor.ErrNoPosition:  "",
	}
	for refusal, how := range permit {
		if errors.Is(err, refusal) {
			return exit.With(exit.Refused, fmt.Errorf("nothing was done: %w%s", err, how))
		}
	}
	return run.Failure(err)
}

// resolved is what the verb prints.
type resolved struct {
	processor.ResolutionPlan

	Done bool `json:"done"`
}

func (r resolved) write(w io.Writer) error {
	cause := r.Cause
	if cause == "" {
		cause = "Kafka has what the position stands on"
	}
	if _, err := fmt.Fprintf(w, "%s/%d\n  log       [%d, %d)\n  position  %d -> %d\n  cause     %s\n\n",
		r.Topic, r.Partition, r.Start, r.End, r.From.Offset, r.To.Offset, cause); err != nil {
		return err
	}
	for _, note := range r.Notes {
		if _, err := fmt.Fprintf(w, "- %s\n", note); err != nil {
			return err
		}
	}
	last := "with --yes and --reason it is done; nothing was done"
	if r.Done {
		last = "done: whoever holds the partition goes on from there; the group's offset: " + r.Mirror
	}
	_, err := fmt.Fprintln(w, last)
	return err
}
