package processor_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgproxytest"
	"effectonce/pkg/processor"
)

// onKafka has the world's topic on the real broker, under a group of its own.
func onKafka(t *testing.T, partitions int32) *world {
	t.Helper()
	return onBroker(t, kafkatest.Broker(t), partitions)
}

// onBroker is onKafka on another real broker.
func onBroker(t *testing.T, addr string, partitions int32, configs ...string) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.broker, w.topic = addr, kafkatest.TopicOn(t, addr, partitions, configs...)
	w.cfg.Topics, w.cfg.Group = []string{w.topic}, w.topic
	w.cfg.Kafka = []kgo.Opt{kgo.SeedBrokers(w.broker)}
	return w
}

// grow adds partitions to the topic, and returns once the broker knows them.
func (w *world) grow(t *testing.T, to int) {
	t.Helper()
	adm := kadm.NewClient(kafkatest.Client(t, w.broker))
	if _, err := adm.UpdatePartitions(t.Context(), to, w.topic); err != nil {
		t.Fatal(err)
	}
	for {
		topics, err := adm.ListTopics(t.Context(), w.topic)
		if err != nil {
			t.Fatal(err)
		}
		if len(topics[w.topic].Partitions) == to {
			return
		}
	}
}

func ids(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("key-%d", i))
	}
	return out
}

// A topic grows from two partitions to four while two members hold it: half of its
// keys come on another partition from then on. With on_partition_growth: widen every
// key is applied once, wherever it comes, and the members go on by themselves.
func TestATopicThatGrowsIsWidened(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 2)
	w.cfg.OnGrowth = processor.GrowthWiden
	w.produce(t, ids(0, 400)...)
	end := w.members(t, 2)
	w.await(t, w.at(t, 400))
	w.grow(t, 4)
	w.produce(t, ids(0, 500)...)
	w.produce(t, ids(0, 500)...)
	w.await(t, w.at(t, 1400))
	end()
	w.exact(t, 500)
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("positions")+" WHERE partition > 1 AND next_offset > 0"); n != 2 {
		t.Errorf("%d new partitions were read: the keys did not move", n)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+" WHERE kind = 'widen'"); n != 1 {
		t.Errorf("%d widenings", n)
	}
	w.grow(t, 5) // scope topic takes more partitions in
	w.produce(t, ids(0, 600)...)
	w.run(t, w.at(t, 2000))
	w.exact(t, 600)
}

// Where partitions are not a multiple of what they were, keys come on old partitions
// that they do not belong on: it is seen by the first of them, before it is applied.
func TestAKeyThatMovedWidens(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 2)
	w.cfg.OnGrowth = processor.GrowthWiden
	w.produce(t, ids(0, 100)...)
	w.run(t, w.at(t, 100))
	w.grow(t, 3)
	w.produce(t, ids(0, 150)...)
	w.run(t, w.at(t, 250))
	w.exact(t, 150)
}

// With stop, the default, what the grown topic shows on stops visibly, and says which
// verb decides; nothing of it is applied.
func TestATopicThatGrowsStops(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 2)
	w.admin(t)
	w.produce(t, ids(0, 100)...)
	w.run(t, w.at(t, 100))
	w.grow(t, 4)
	w.produce(t, ids(0, 150)...)
	w.run(t, func() bool {
		answer := w.get("/readyz?verbose")
		return strings.Contains(answer, "/2 stopped") && strings.Contains(answer, "/3 stopped") && strings.Contains(answer, "processor pipeline migrate")
	})
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("positions")); n != 2 {
		t.Errorf("%d positions", n)
	}

	w.cfg.Scope = "topic" // what the operator decides then
	w.refused(t)
	plan, err := w.migrate(t, processor.Migration{Apply: true})
	if err != nil || plan.Forgets() || len(plan.Topics) != 1 || plan.Topics[0].To.Partitions != 4 {
		t.Fatalf("%+v, %v", plan, err)
	}
	w.run(t, w.at(t, 250))
	w.exact(t, 150)
}

// A topic is widened while a filter is being rebuilt, which takes as long as it takes:
// nothing is read until the pipeline is open again, so that does not wait for it.
func TestWideningDoesNotWaitForAFilter(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 2)
	w.cfg.OnGrowth, w.cfg.DedupMemory = processor.GrowthWiden, 2
	w.produce(t, ids(0, 4000)...)
	live := "SELECT count(*) FROM " + w.db.Relation("segments") + " WHERE state = 'live'"
	w.run(t, func() bool { return w.at(t, 4000)() && w.count(t, live) > 0 })
	proxy := w.through(t)
	proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: "WITH ORDINALITY AS u (id, n)"})
	held := sync.OnceFunc(func() {
		<-proxy.Fired()
		w.grow(t, 3) // keys move to where they do not belong: that is seen at once
		w.produce(t, ids(0, 4500)...)
	})
	w.run(t, func() bool {
		held()
		return w.at(t, 8500)()
	})
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 4500 {
		t.Errorf("%d effects of 4500 keys", n)
	}
}
