package kafkatest_test

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"effectonce/internal/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// consume reads n records of the topic's one partition from its beginning.
func consume(t *testing.T, addr, topic string, n int) []string {
	t.Helper()
	client := kafkatest.Client(t, addr, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	var got []string
	for len(got) < n {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) { got = append(got, string(r.Value)) })
	}
	return got
}

func TestTopicsAreDeleted(t *testing.T) {
	addr := kafkatest.Broker(t)
	var topic string
	t.Run("a name/with 1 ü", func(t *testing.T) {
		topic = kafkatest.Topic(t, 1, "retention.ms=12345")
		other := kafkatest.Topic(t, 1)
		if topic == other {
			t.Errorf("two topics are named %s", topic)
		}
		kafkatest.Produce(t, &kgo.Record{Topic: topic, Value: []byte("a")}, &kgo.Record{Topic: topic, Value: []byte("b")})
		if diff := cmp.Diff([]string{"a", "b"}, consume(t, addr, topic, 2)); diff != "" {
			t.Error(diff)
		}
		configs, err := kadm.NewClient(kafkatest.Client(t, addr)).DescribeTopicConfigs(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range configs[0].Configs {
			if c.Key == "retention.ms" && c.MaybeValue() != "12345" {
				t.Errorf("retention.ms = %s", c.MaybeValue())
			}
		}
	})
	// The controller has deleted it; the broker's own view follows.
	admin := kadm.NewClient(kafkatest.Client(t, addr))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for {
		topics, err := admin.ListTopics(ctx)
		if err != nil {
			t.Fatalf("%s outlived its test: %v", topic, err)
		}
		if !topics.Has(topic) {
			return
		}
	}
}

func TestFake(t *testing.T) {
	addr := kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]
	kafkatest.ProduceTo(t, addr, &kgo.Record{Topic: "orders", Value: []byte("a")})
	if diff := cmp.Diff([]string{"a"}, consume(t, addr, "orders", 1)); diff != "" {
		t.Error(diff)
	}
}

func TestStartPrivate(t *testing.T) {
	var addr string
	t.Run("up", func(t *testing.T) {
		b := kafkatest.StartPrivate(t, map[string]string{"message.max.bytes": "54321"}, kafkatest.Listener{Name: "SECOND", Protocol: "PLAINTEXT"})
		addr = b.Addr
		topic := kafkatest.TopicOn(t, addr, 1)
		kafkatest.ProduceTo(t, b.ListenerAddr("SECOND"), &kgo.Record{Topic: topic, Value: []byte("a")})
		if diff := cmp.Diff([]string{"a"}, consume(t, addr, topic, 1)); diff != "" {
			t.Error(diff)
		}
		configs, err := kadm.NewClient(kafkatest.Client(t, addr)).DescribeBrokerConfigs(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range configs[0].Configs {
			if c.Key == "message.max.bytes" && c.MaybeValue() != "54321" {
				t.Errorf("message.max.bytes = %s", c.MaybeValue())
			}
		}
	})
	if conn, err := net.Dial("tcp", addr); err == nil {
		_ = conn.Close() // the failure is told below
		t.Error("the broker outlived its test")
	}
}
