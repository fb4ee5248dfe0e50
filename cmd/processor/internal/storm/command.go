package storm

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/bench"
	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
)

// options say how large the storm is.
type options struct {
	bench.Target

	binary      string // the program whose verbs the members run
	protocol    string
	members     int
	partitions  int32
	batch       int     // records in a transaction, at most
	ahead       int64   // records of each partition beyond the fastest position
	rate        float64 // events a minute
	kinds       []string
	calm        time.Duration // in all
	storm       time.Duration
	restarts    int
	kills       int
	killsAtOnce int
	within      time.Duration // all of it; kills end early
	session     time.Duration
	heartbeat   time.Duration
	naiveRate   int // records a second of the naive group's topic, 0 is no such group
	seed        uint64
	svg         string
	logs        string
}

var protocols = []string{"cooperative", "consumer", "range"}

const allProtocols = "all"

// Command is the verb storm.
func Command() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "storm",
		Short: "Rebalance storms: is every key applied once, in order, and how long does a partition wait",
		Args:  cobra.NoArgs,
		Long: `Storm runs a group of "processor run" processes against a backlog that never runs
dry, first left alone, then with members that join, leave (SIGTERM), freeze (SIGSTOP
past the session, SIGCONT) and are killed (kill -9) at a rate; then it restarts
members one at a time, and kills some at once. At the end the topic, read by a client without a group,
is held against the table that was filled, which has no unique constraint. Beside
each member runs one of a plain at-least-once group, which suffers the same.

It exits with 3 if one key was lost, doubled or applied out of its partition's order.`,
	}
	o.Bind(cmd)
	o.bind(cmd)
	out := cli.BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		if err := o.validate(); err != nil {
			return exit.With(exit.UsageError, err)
		}
		if o.binary, err = os.Executable(); err != nil {
			return fmt.Errorf("own binary: %w", err)
		}
		res, err := o.run(cmd.Context(), cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if asJSON {
			err = cli.WriteJSON(cmd.OutOrStdout(), res.object())
		} else {
			err = cli.WriteTable(cmd.OutOrStdout(), res.rows())
		}
		return errors.Join(err, exit.With(exit.Refused, res.verdict()))
	}
	return cmd
}

func (o *options) bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.protocol, "protocol", protocols[0], "cooperative, consumer (KIP-848), range, or all of them in turn")
	f.IntVar(&o.members, "members", 4, "member processes at the start")
	f.Int32Var(&o.partitions, "partitions", 16, "partitions of the topic")
	f.IntVar(&o.batch, "batch", 100, "most records in a transaction, as batch.max_records")
	f.Int64Var(&o.ahead, "ahead", 60_000, "records that the producer is ahead, in each partition")
	f.Float64Var(&o.rate, "rate", 20, "events a minute in the storm")
	f.StringSliceVar(&o.kinds, "kinds", []string{join, leave, freeze, kill}, "kinds of event in the storm")
	f.DurationVar(&o.calm, "calm", time.Minute, "time without events, half before the storm and half behind it")
	f.DurationVar(&o.storm, "storm", 3*time.Minute, "time of the storm")
	f.IntVar(&o.restarts, "restarts", 8, "planned restarts, one at a time")
	f.IntVar(&o.kills, "kills", 50, "kills of a settled group, as many as the time allows")
	f.IntVar(&o.killsAtOnce, "kills-at-once", 3, "members killed at the same moment; one is always left")
	f.DurationVar(&o.within, "within", 8*time.Minute, "time for all of one protocol")
	f.DurationVar(&o.session, "session", 6*time.Second, "session timeout of the classic protocols; of the consumer protocol it is the broker's")
	f.DurationVar(&o.heartbeat, "heartbeat", 500*time.Millisecond, "heartbeat interval, likewise")
	f.IntVar(&o.naiveRate, "naive-rate", 2000, "records a second for the at-least-once group beside it, 0 for no such group")
	f.Uint64Var(&o.seed, "seed", 1, "of the orders and of the events")
	f.StringVar(&o.svg, "svg", "", "draw the timeline to `FILE`; with all protocols, one file each")
	f.StringVar(&o.logs, "logs", "", "keep the members' logs in `DIR`")
}

func (o *options) validate() error {
	switch {
	case o.protocol != allProtocols && !slices.Contains(protocols, o.protocol):
		return fmt.Errorf("--protocol: %q is not cooperative, consumer, range or all", o.protocol)
	case o.members < 2 || o.members > 16:
		return errors.New("--members: 2 to 16")
	case o.partitions < int32(o.members) || o.partitions > 1000:
		return errors.New("--partitions: at least one a member, at most 1000")
	case o.batch < 1 || o.ahead < 1 || o.rate <= 0 || o.rate > 600:
		return errors.New("--batch and --ahead are positive, --rate above 0 and at most 600")
	case o.calm < time.Second || o.storm < time.Second:
		return errors.New("--calm and --storm: at least a second")
	case o.heartbeat <= 0 || o.session < 3*o.heartbeat:
		return errors.New("--session: at least three heartbeats")
	case o.restarts < 0 || o.kills < 0 || o.naiveRate < 0:
		return errors.New("--restarts, --kills and --naive-rate: not below 0")
	case o.killsAtOnce < 1:
		return errors.New("--kills-at-once: at least 1")
	case len(o.kinds) == 0:
		return errors.New("--kinds: at least one")
	}
	for _, k := range o.kinds {
		if !slices.Contains([]string{join, leave, freeze, kill}, k) {
			return fmt.Errorf("--kinds: %q is not join, leave, freeze or kill", k)
		}
	}
	return nil
}
