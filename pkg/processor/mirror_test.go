package processor_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/rebalance"
)

// commit writes the group's offset of partition 0 from outside, as Kafka's tools do:
// without metadata, while the group is empty.
func (w *world) commit(t *testing.T, at int64) {
	t.Helper()
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: w.topic, Partition: 0, At: at, LeaderEpoch: -1})
	if err := kadm.NewClient(kafkatest.Client(t, w.broker)).CommitAllOffsets(t.Context(), w.group(), o); err != nil {
		t.Fatal(err)
	}
}

func (w *world) group() string {
	if w.cfg.Group == "" {
		return w.cfg.Pipeline
	}
	return w.cfg.Group
}

// Where a pipeline moves in behind another consumer, the start setting decides about
// what that one has left in the group. It is no reset from outside, also where one
// would stop the partition.
func TestWhatAnotherConsumerLeftIsNoReset(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.cfg.OnReset, w.cfg.Start = "fail", rebalance.Start{Kind: "earliest"}
	w.produce(t, "a", "b", "c")
	w.commit(t, 2)
	w.run(t, w.at(t, 3))
	w.exact(t, 3)
}

// The other consumer still runs in the group: nothing begins before it is stopped.
func TestAGroupInUseIsWaitedFor(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.admin(t)
	w.cfg.Start = rebalance.Start{Kind: "committed"}
	w.produce(t, "a", "b", "c")
	w.commit(t, 2)
	other := kafkatest.Client(t, w.broker, kgo.ConsumerGroup(w.group()), kgo.ConsumeTopics(w.topic), kgo.DisableAutoCommit())
	if fetches := other.PollFetches(t.Context()); fetches.Err() != nil { // it is a member now
		t.Fatal(fetches.Err())
	}
	stopped := false
	w.run(t, func() bool {
		if !stopped && strings.Contains(w.get("/readyz"), "has that one been stopped?") {
			stopped = true
			other.Close()
		}
		return w.position(t) == 3
	})
	if !stopped {
		t.Error("it was not waited for")
	}
	w.exact(t, 1)
}

// B11: Kafka has dropped the group's offsets after a while, or somebody has set them
// to 0: the position in Postgres wins, and nothing is read again.
func TestThePositionWinsOverTheGroupsOffset(t *testing.T) {
	t.Parallel()
	t.Run("dropped", func(t *testing.T) {
		t.Parallel()
		if os.Getenv("EFFECTONCE_E2E_SEEDS") == "" { // Kafka itself takes a minute
			w := onKafka(t, 1)
			w.losesOffsets(t, w.dropOffsets, false)
			return
		}
		broker := kafkatest.StartPrivate(t, map[string]string{"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "1000"})
		w := onBroker(t, broker.Addr, 1)
		w.losesOffsets(t, w.offsetsExpire, false)
	})
	t.Run("set to 0", func(t *testing.T) {
		t.Parallel()
		w := onKafka(t, 1)
		w.losesOffsets(t, func(t *testing.T) { t.Helper(); w.commit(t, 0) }, true)
	})
}

// losesOffsets applies 20 records, has the group lose its offsets, and one more.
func (w *world) losesOffsets(t *testing.T, lose func(*testing.T), told bool) {
	t.Helper()
	w.produce(t, ids(0, 20)...)
	w.run(t, w.at(t, 20))
	lose(t)
	w.produce(t, ids(20, 21)...)
	log := &lines{}
	w.cfg.Logger = zerolog.New(log)
	w.run(t, w.at(t, 21))
	w.exact(t, 21)
	if read := w.count(t, "SELECT sum(read) FROM "+w.db.Relation("audit")); read != 21 {
		t.Errorf("%d records were read, want 21", read)
	}
	if says := strings.Contains(log.String(), "moved to 0 from outside"); says != told {
		t.Errorf("told of a reset: %v", says)
	}
}

// offset is the group's offset of partition 0, -1 if it has none.
func (w *world) offset(t *testing.T) int64 {
	t.Helper()
	got, err := kadm.NewClient(kafkatest.Client(t, w.broker)).FetchOffsets(t.Context(), w.group())
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		t.Fatal(err)
	}
	if o, ok := got.Lookup(w.topic, 0); ok {
		return o.At
	}
	return -1
}

// dropOffsets makes Kafka forget the group's offsets.
func (w *world) dropOffsets(t *testing.T) {
	t.Helper()
	set := kadm.TopicsSet{}
	set.Add(w.topic, 0)
	if _, err := kadm.NewClient(kafkatest.Client(t, w.broker)).DeleteOffsets(t.Context(), w.group(), set); err != nil {
		t.Fatal(err)
	}
	if at := w.offset(t); at != -1 {
		t.Fatalf("the group's offset is still %d", at)
	}
}

// offsetsExpire waits for Kafka to forget them.
func (w *world) offsetsExpire(t *testing.T) {
	t.Helper()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for deadline := time.After(3 * time.Minute); w.offset(t) != -1; {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatal("the group's offsets do not expire")
		}
	}
}
