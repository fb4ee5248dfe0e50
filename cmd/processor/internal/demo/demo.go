package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"effectonce/cmd/processor/internal/produce"
)

// Options say how large the demo is.
type Options struct {
	Records    int64 // sent, repeats included
	Partitions int32
	Members    int // processes of each consumer
	Seed       uint64
	Keep       bool // leave everything running until the context ends
	Fetch      bool // ignore an installed Postgres
	JSON       bool
	Binary     string // path of the program whose verbs the children run

	rate int // records a second sent, 0 is full speed
}

const (
	repeatPercent = 10
	kills         = 3
)

// errInterrupted stands for whatever noticed first that the context had ended.
var errInterrupted = errors.New("interrupted before the end")

func (o Options) validate() error {
	switch {
	case o.Records < 1000:
		return errors.New("--records: at least 1000, or there is nothing to kill in the middle of")
	case o.Partitions < 1 || o.Partitions > 1000:
		return errors.New("--partitions: 1 to 1000")
	case o.Members < 1 || o.Members > 16:
		return errors.New("--members: 1 to 16")
	}
	return nil
}

// Run runs the demo: the result goes to out, what happens meanwhile to progress.
// It fails if a child ended by itself, if nothing moved for a minute, or if our
// consumer lost, doubled or reordered an order. Nothing it started and no file
// outlives it.
func Run(ctx context.Context, o Options, out, progress io.Writer) (err error) {
	say := newTeller(progress, 2*o.Records)
	s, err := open(ctx, o, say)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()

	result, err := s.perform(ctx)
	switch {
	case ctx.Err() != nil:
		return errInterrupted
	case err != nil:
		return err
	}
	if err := result.write(out, o.JSON); err != nil {
		return err
	}
	s.next(progress)
	verdict := result.verdict()
	if o.Keep {
		if verdict != nil {
			say.line("%v", verdict)
		}
		<-ctx.Done()
	}
	return verdict
}

// perform sends the stream and consumes it twice, all at the same time, then counts.
func (s *stage) perform(ctx context.Context) (Result, error) {
	var sent produce.Sent
	start := time.Now()
	finished := make(chan struct{})
	group, working := errgroup.WithContext(ctx)
	group.Go(func() error {
		job := produce.Job{Brokers: []string{s.kafka.Address}, Topic: topic, Records: s.opt.Records, Repeat: repeatPercent, Seed: s.opt.Seed,
			Rate: s.opt.rate}
		if err := produce.Run(working, job, &sent); err != nil {
			return err
		}
		if n := sent.Records.Load(); n != job.Records {
			return fmt.Errorf("sent %d of %d records: %w", n, job.Records, context.Cause(working))
		}
		s.say.line("sent %d records, %d distinct orders among them, in %.1f s", sent.Records.Load(), sent.Distinct.Load(), time.Since(start).Seconds())
		return nil
	})
	group.Go(func() error {
		defer close(finished)
		flows, running := errgroup.WithContext(working)
		for _, f := range []*flow{s.ours, s.naive} {
			flows.Go(func() error { return f.run(running) })
		}
		return flows.Wait()
	})
	group.Go(func() error {
		s.say.watch(finished, s.ours, s.naive)
		return nil
	})
	if err := group.Wait(); err != nil {
		return Result{}, err
	}
	if !s.opt.Keep {
		var ends errgroup.Group
		ends.Go(s.ours.stop)
		ends.Go(s.naive.stop)
		if err := ends.Wait(); err != nil {
			return Result{}, err
		}
	}
	s.say.line("counting both tables")
	return s.count(ctx, ledger{seed: s.opt.Seed, records: sent.Records.Load(), distinct: sent.Distinct.Load()})
}
