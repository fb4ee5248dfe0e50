package produce

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Job says what to send and where.
type Job struct {
	Brokers []string
	Topic   string
	Records int64 // 0 sends until the context ends
	Repeat  int   // percent of the records, 0 to MaxRepeat
	Seed    uint64
	Rate    int // records a second, 0 is as fast as the broker takes them

	// Due, if set, decides in place of Rate: it returns when the next record behind
	// made others is to be sent, false when none is any more.
	Due func(ctx context.Context, made int64) bool
}

// Sent counts what the brokers acknowledged. It is read while Run works.
type Sent struct {
	Records  atomic.Int64
	Distinct atomic.Int64
}

// inFlight bounds the records that wait for their acknowledgement.
const inFlight = 50_000

// Run sends the stream and counts in sent what was acknowledged. Orders that share
// a key share a partition, by the default partitioner of Kafka's own clients (murmur2), and
// stay in order. The first record that a broker refuses ends it with an error; the
// end of the context ends it without one.
func Run(ctx context.Context, job Job, sent *Sent) error {
	parent := ctx
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	cl, err := kgo.NewClient(kgo.SeedBrokers(job.Brokers...), kgo.DefaultProduceTopic(job.Topic), kgo.ClientID("effectonce-produce"),
		kgo.ProducerBatchCompression(kgo.Lz4Compression(), kgo.NoCompression()), kgo.ProducerLinger(5*time.Millisecond),
		kgo.MaxBufferedRecords(inFlight), kgo.RecordDeliveryTimeout(time.Minute))
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()

	acknowledged := func(distinct int64) func(*kgo.Record, error) {
		return func(_ *kgo.Record, err error) {
			if err != nil {
				fail(fmt.Errorf("produce to %s: %w", job.Topic, err))
				return
			}
			sent.Records.Add(1)
			sent.Distinct.Add(distinct)
		}
	}
	first, again := acknowledged(1), acknowledged(0)
	due := job.Due
	if due == nil {
		due = (&pacer{rate: job.Rate, start: time.Now()}).wait
	}
	var made int64
	for o := range Orders(job.Seed, job.Repeat) {
		if made == job.Records && job.Records > 0 || !due(ctx, made) {
			break
		}
		done := first
		if o.Repeat {
			done = again
		}
		cl.Produce(ctx, &kgo.Record{Key: o.Key, Value: o.Value}, done)
		made++
	}
	// Records whose context ended before they were sent are given up, at once.
	flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	err = cl.Flush(flush)
	switch cause := context.Cause(ctx); {
	case parent.Err() != nil:
		return nil
	case cause != nil:
		return cause
	case err != nil:
		return fmt.Errorf("flush: %w", err)
	}
	return nil
}

// pacer keeps a stream at a rate.
type pacer struct {
	rate  int
	start time.Time
}

// wait returns when the next record is due, false if the context ended first.
func (p *pacer) wait(ctx context.Context, made int64) bool {
	if p.rate <= 0 {
		return ctx.Err() == nil
	}
	// A timer has a granularity of about a millisecond; shorter waits add up first.
	due := time.Until(p.start.Add(time.Duration(float64(made) / float64(p.rate) * float64(time.Second))))
	if due < time.Millisecond {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(due)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// createTopic makes the topic unless it is there already. The brokers' default
// decides the replication.
func createTopic(ctx context.Context, brokers []string, topic string, partitions int32) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, partitions, -1, nil, topic); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	return nil
}

// ping fails when no broker answers.
func ping(ctx context.Context, brokers []string) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RetryTimeout(5*time.Second))
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()
	if err := cl.Ping(ctx); err != nil {
		return fmt.Errorf("kafka at %v: %w", brokers, err)
	}
	return nil
}
