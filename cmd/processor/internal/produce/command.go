package produce

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/text/language"
	"golang.org/x/text/message"

	"effectonce/cmd/processor/internal/exit"
)

// Command is the verb produce. It is hidden: a tool for demos and benches.
func Command() *cobra.Command {
	var (
		job        Job
		create     bool
		partitions int32
	)
	cmd := &cobra.Command{
		Use:    "produce",
		Short:  "Send a stream of orders, some of them twice, to a Kafka topic",
		Long:   "Send a stream of orders to a Kafka topic. The stream is a function of its seed: the same seed sends the same orders again.",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if job.Repeat < 0 || job.Repeat > MaxRepeat {
				return exit.With(exit.UsageError, fmt.Errorf("--repeat %d: want 0 to %d", job.Repeat, MaxRepeat))
			}
			if job.Records < 0 || job.Rate < 0 || partitions < 1 {
				return exit.With(exit.UsageError, errors.New("--records and --rate are at least 0, --partitions at least 1"))
			}
			if !create {
				partitions = 0
			}
			return send(cmd, job, partitions)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&job.Brokers, "brokers", []string{"127.0.0.1:9092"}, "Kafka `addresses`")
	f.StringVar(&job.Topic, "topic", "orders", "topic to send to")
	f.Int64Var(&job.Records, "records", 200_000, "how many records to send, 0 for no end")
	f.IntVar(&job.Repeat, "repeat", 10, "`percent` of the records that repeat an earlier order")
	f.Uint64Var(&job.Seed, "seed", 1, "seed of the stream")
	f.IntVar(&job.Rate, "rate", 0, "records a second, 0 for as fast as possible")
	f.BoolVar(&create, "create-topic", false, "create the topic unless it exists")
	f.Int32Var(&partitions, "partitions", 8, "partitions of a created topic")
	return cmd
}

// send sends the job, with a line on stderr every ten seconds and a sum on stdout.
func send(cmd *cobra.Command, job Job, create int32) error {
	connect, cancel := context.WithTimeout(cmd.Context(), 10*time.Second)
	defer cancel()
	if err := ping(connect, job.Brokers); err != nil {
		return exit.With(exit.Unavailable, err)
	}
	if create > 0 {
		if err := createTopic(connect, job.Brokers, job.Topic, create); err != nil {
			return err
		}
	}

	p := message.NewPrinter(language.English)
	var sent Sent
	start := time.Now()
	group, ctx := errgroup.WithContext(cmd.Context())
	done := make(chan struct{})
	group.Go(func() error {
		defer close(done)
		return Run(ctx, job, &sent)
	})
	group.Go(func() error {
		tick := time.NewTicker(10 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p.Fprintf(cmd.ErrOrStderr(), "sent %d records to %s\n", sent.Records.Load(), job.Topic)
			case <-done:
				return nil
			}
		}
	})
	err := group.Wait()
	p.Fprintf(cmd.OutOrStdout(), "sent %d records, %d distinct orders, to %s in %.1f s\n",
		sent.Records.Load(), sent.Distinct.Load(), job.Topic, time.Since(start).Seconds())
	return err
}
