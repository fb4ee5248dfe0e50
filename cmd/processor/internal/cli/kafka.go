package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/cmd/processor/internal/exit"
)

// checkKafka asks the brokers whether they answer, are new enough, and have
// the topics.
func checkKafka(ctx context.Context, l *config.Loaded, r *report) {
	c := l.Config.Kafka
	opts, err := connect.Kafka(c)
	if err != nil {
		r.fail("kafka", exit.Config, err)
		return
	}
	dials := &dialLog{}
	client, err := kgo.NewClient(append(opts, kgo.WithHooks(dials), kgo.RetryTimeout(reach/2))...)
	if err != nil {
		r.fail("kafka", exit.Config, err)
		return
	}
	defer client.Close()
	if err := connect.CheckKafka(ctx, client); err != nil {
		r.fail("kafka", kafkaCode(err), dials.explain(err))
		return
	}
	r.fine("kafka", "%s answers", strings.Join(c.Brokers, ", "))
	checkTopics(ctx, kadm.NewClient(client), c.Topics, r)
}

// kafkaCode tells an old broker and a refused login, which must be changed,
// from silence.
func kafkaCode(err error) int {
	if errors.Is(err, connect.ErrTooOld) {
		return exit.Refused
	}
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState) {
		return exit.Config
	}
	return exit.Unavailable
}

// checkTopics looks for the topics by name.
func checkTopics(ctx context.Context, adm *kadm.Client, names []string, r *report) {
	topics, err := adm.ListTopics(ctx, names...)
	if err != nil {
		r.fail("kafka.topics", exit.Unavailable, err)
		return
	}
	for _, name := range names {
		switch t := topics[name]; {
		case errors.Is(t.Err, kerr.UnknownTopicOrPartition):
			r.fail("kafka.topics", exit.Refused, fmt.Errorf("topic %s does not exist, or may not be seen", name))
		case t.Err != nil:
			r.fail("kafka.topics", exit.Refused, fmt.Errorf("topic %s: %w", name, t.Err))
		default:
			r.fine("kafka.topics", "topic %s has %d partitions", name, len(t.Partitions))
		}
	}
}

// dialLog remembers why the last connection failed: the client retries until
// its time is up and then only says that it is.
type dialLog struct {
	mu   sync.Mutex // guards last
	last error
}

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (d *dialLog) OnBrokerConnect(meta kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = fmt.Errorf("%s: %w", net.JoinHostPort(meta.Host, fmt.Sprint(meta.Port)), err)
}

// explain prefers the reason of a failed connection to a mere timeout.
func (d *dialLog) explain(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.last != nil && (errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kgo.ErrClientClosed)) {
		return d.last
	}
	return err
}
