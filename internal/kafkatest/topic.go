package kafkatest

import (
	"context"
	"crypto/rand"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
)

// settle bounds what runs when a test is over.
const settle = 10 * time.Second

// Broker is the host:port of the shared real broker.
func Broker(tb testing.TB) string {
	tb.Helper()
	return setting(tb, envBroker)
}

// Client is a client of the broker at addr, closed at the end of the test.
func Client(tb testing.TB, addr string, opts ...kgo.Opt) *kgo.Client {
	tb.Helper()
	client, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addr)}, opts...)...)
	if err != nil {
		tb.Fatalf("kafka client: %v", err)
	}
	tb.Cleanup(client.Close)
	return client
}

// Topic creates a topic with a name of its own on the shared broker and deletes
// it at the end of the test. A config is written key=value.
func Topic(tb testing.TB, partitions int32, configs ...string) string {
	tb.Helper()
	return TopicOn(tb, Broker(tb), partitions, configs...)
}

// TopicOn is Topic on another broker.
func TopicOn(tb testing.TB, addr string, partitions int32, configs ...string) string {
	tb.Helper()
	admin := kadm.NewClient(Client(tb, addr))
	set := make(map[string]*string, len(configs))
	for _, c := range configs {
		key, value, ok := strings.Cut(c, "=")
		if !ok {
			tb.Fatalf("topic config %q is not key=value", c)
		}
		set[key] = &value
	}
	name := topicName(tb)
	if _, err := admin.CreateTopic(tb.Context(), partitions, 1, set, name); err != nil {
		tb.Fatalf("create topic %s on %s: %v", name, addr, err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), settle)
		defer cancel()
		if _, err := admin.DeleteTopic(ctx, name); err != nil {
			tb.Logf("delete topic %s: %v", name, err) // the test may have deleted it itself
		}
	})
	return name
}

// topicName is legal, tells which test it is, and is used once.
func topicName(tb testing.TB) string {
	legal := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '-'
	}
	test := strings.Map(legal, tb.Name())
	return test[:min(len(test), 100)] + "-" + strings.ToLower(rand.Text()[:10])
}

// Produce writes records to the shared broker and returns when all are
// acknowledged, each with its partition and offset filled in. Records with a
// key go to the partition the Java client would choose.
func Produce(tb testing.TB, records ...*kgo.Record) {
	tb.Helper()
	ProduceTo(tb, Broker(tb), records...)
}

// ProduceTo is Produce to another broker.
func ProduceTo(tb testing.TB, addr string, records ...*kgo.Record) {
	tb.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		tb.Fatalf("kafka client: %v", err)
	}
	defer client.Close()
	if err := client.ProduceSync(tb.Context(), records...).FirstErr(); err != nil {
		tb.Fatalf("produce to %s: %v", addr, err)
	}
}

// Fake starts a broker in this process, with topics of the given partition
// count, until the end of the test. Its ListenAddrs are the seed brokers.
func Fake(tb testing.TB, partitions int32, topics ...string) *kfake.Cluster {
	tb.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(partitions, topics...))
	if err != nil {
		tb.Fatalf("start fake broker: %v", err)
	}
	tb.Cleanup(cluster.Close)
	return cluster
}
