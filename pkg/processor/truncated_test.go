package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/processor"
	"effectonce/pkg/rebalance"
)

// onTail has the world's topic on a broker that will lose its tail, each record in a
// batch of its own.
func onTail(t *testing.T, b *kafkatest.Private) *world {
	t.Helper()
	w := newWorld(t, 1)
	w.broker, w.topic = b.Addr, kafkatest.TopicOn(t, b.Addr, 1)
	w.cfg.Topics, w.cfg.Group = []string{w.topic}, w.topic
	w.cfg.Kafka = []kgo.Opt{
		kgo.SeedBrokers(w.broker), kgo.RetryBackoffFn(func(int) time.Duration { return 100 * time.Millisecond }),
	}
	w.admin(t)
	for _, id := range ids(0, 20) {
		w.produce(t, id)
	}
	return w
}

// A broker comes back without the last records that were applied, and its new leader
// writes others at their offsets. No position runs into them: what was down stops when
// it is started, what was running stops by itself; both go on where the logs part, by
// an operator's decision and by policy. What the new branch has is applied, what
// producers sent again is a duplicate.
func TestATruncatedLog(t *testing.T) {
	t.Parallel()
	b := kafkatest.StartPrivate(t, nil)
	down, running := onTail(t, b), onTail(t, b)
	down.run(t, down.at(t, 20))
	running.cfg.OnTruncated = rebalance.Rewind
	end := running.start(t)
	running.await(t, running.at(t, 20))

	b.LoseTail(t, 0.6, down.topic, running.topic)
	for _, w := range []*world{down, running} {
		w.produce(t, "key-19", "key-18")
		w.produce(t, ids(20, 40)...)
	}
	running.await(t, func() bool { return running.count(t, "SELECT count(*) FROM "+running.orders()) == 40 })
	end()
	running.exact(t, 40)
	if n := running.count(t, "SELECT count(*) FROM "+running.db.Relation("decisions")+" WHERE reason = 'policy on_truncated: rewind'"); n != 1 {
		t.Errorf("%d decisions", n)
	}

	end = down.start(t)
	down.await(t, down.stopped("truncated to offset"))
	plan, err := down.resolve(t, processor.Resolution{Verb: processor.AcceptLoss})
	if err != nil || plan.Cause != "truncated" || plan.To.Offset >= 20 || plan.To.Offset == 0 || plan.To.LeaderEpoch != plan.From.LeaderEpoch {
		t.Fatalf("%+v %v", plan, err)
	}
	if want := fmt.Sprintf("the log was cut at %d", plan.To.Offset); !strings.Contains(strings.Join(plan.Notes, "\n"), want) {
		t.Errorf("%q", plan.Notes)
	}
	down.await(t, func() bool { return down.count(t, "SELECT count(*) FROM "+down.orders()) == 40 })
	end()
	down.exact(t, 40)
}
