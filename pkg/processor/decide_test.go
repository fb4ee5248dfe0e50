package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
	"effectonce/pkg/rebalance"
)

// deleteTo deletes the records of partition 0 below an offset.
func (w *world) deleteTo(t *testing.T, offset int64) {
	t.Helper()
	var to kadm.Offsets
	to.Add(kadm.Offset{Topic: w.topic, At: offset})
	answers, err := kadm.NewClient(kafkatest.Client(t, w.broker)).DeleteRecords(t.Context(), to)
	if err = errors.Join(err, answers.Error()); err != nil {
		t.Fatal(err)
	}
}

// start runs one member until the test ends or end is called.
func (w *world) start(t *testing.T) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, w.cfg) }()
	end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	return end
}

// resolve decides about partition 0.
func (w *world) resolve(t *testing.T, r processor.Resolution) (processor.ResolutionPlan, error) {
	t.Helper()
	r.Topic, r.Apply, r.Reason = w.topic, true, "test"
	return processor.Resolve(t.Context(), w.cfg, r)
}

// mirrored is the group's own offset of partition 0.
func (w *world) mirrored(t *testing.T) int64 {
	t.Helper()
	group := w.cfg.Group
	got, err := kadm.NewClient(kafkatest.Client(t, w.broker)).FetchOffsets(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	o, _ := got.Lookup(w.topic, 0)
	return o.At
}

// told is a metric line about partition 0 that names the topic.
func (w *world) told(line string) bool {
	return strings.Contains(w.get("/metrics"), fmt.Sprintf(line, w.topic))
}

// B08: caught up to 10, stopped, produced to 100, records before 40 deleted, started:
// the member stops and says that 10 to 39 are lost. Accepted, it goes on at 40 without
// a restart: each of 40 to 99 is applied once, and it never was at 100.
func TestRecordsThatRetentionTookStopThePartition(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.produce(t, ids(0, 10)...)
	w.run(t, w.at(t, 10))
	w.produce(t, ids(10, 100)...)
	w.deleteTo(t, 40)
	w.admin(t)
	end := w.start(t)
	w.await(t, w.stopped("offsets 10 to 39 are gone from Kafka unapplied: the position is 10, the log is [40, 100)"))
	for _, line := range []string{"effectonce_lost_offset{edge=\"first\",partition=\"0\",topic=%q} 10\n", "effectonce_lost_offset{edge=\"last\",partition=\"0\",topic=%q} 39\n"} {
		if !w.told(line) {
			t.Errorf("not in /metrics: "+line, w.topic)
		}
	}
	if at := w.position(t); at != 10 {
		t.Errorf("the position is %d before anybody decided", at)
	}
	plan, err := w.resolve(t, processor.Resolution{Verb: processor.AcceptLoss})
	if err != nil || plan.To.Offset != 40 || plan.GivenUp != 30 || plan.To.LeaderEpoch != 0 {
		t.Fatalf("%+v %v", plan, err)
	}
	w.await(t, w.at(t, 100))
	end()
	w.exact(t, 70)
}

// B08 with on_out_of_range: accept_loss: the same by itself, written down.
func TestPolicyAcceptsWhatRetentionTook(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.produce(t, ids(0, 10)...)
	w.run(t, w.at(t, 10))
	w.produce(t, ids(10, 100)...)
	w.deleteTo(t, 40)
	w.cfg.OnOutOfRange = rebalance.AcceptLoss
	w.admin(t)
	end := w.start(t)
	w.await(t, w.at(t, 100))
	if metrics := w.get("/metrics"); !strings.Contains(metrics, `effectonce_accepted_loss_offsets_total{cause="out_of_range"} 30`) {
		t.Error("30 lost offsets are not counted")
	}
	end()
	w.exact(t, 70)
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+` WHERE partition = 0 AND kind = 'accept_loss'
		AND reason = 'policy on_out_of_range: accept_loss' AND detail->'lost' = '{"from": 10, "to": 40}'`); n != 1 {
		t.Errorf("%d decisions", n)
	}
}

// B08 under a running member: an open Kafka transaction holds it at 10 while records
// behind are deleted from under it.
func TestRecordsDeletedUnderARunningMember(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.cfg.OnOutOfRange = rebalance.AcceptLoss
	w.produce(t, ids(0, 10)...)
	end := w.start(t)
	w.await(t, w.at(t, 10))
	writer := w.writer(t)
	w.begin(t, writer, "open")
	w.produce(t, ids(11, 100)...)
	w.deleteTo(t, 40)
	w.await(t, w.at(t, 40))
	if err := writer.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	w.await(t, func() bool { return w.position(t) >= 100 })
	end()
	w.exact(t, 70)
}

// The position lies beyond the end of the log, with and without a leader epoch: the
// partition stops, and goes on at the end when that was accepted.
func TestAPositionBeyondTheEnd(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ epoch, cause string }{
		"with a leader epoch": {"0", "truncated"},
		"without":             {"-1", "out_of_range"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onKafka(t, 1)
			w.produce(t, ids(0, 10)...)
			w.run(t, w.at(t, 10))
			w.db.Exec(t, "UPDATE "+w.db.Relation("positions")+" SET next_offset = 200, leader_epoch = "+c.epoch)
			w.admin(t)
			end := w.start(t)
			w.await(t, w.stopped(c.cause))
			plan, err := w.resolve(t, processor.Resolution{Verb: processor.AcceptLoss})
			if err != nil || plan.Cause != c.cause || plan.To.Offset != 10 || plan.To.LeaderEpoch != 0 {
				t.Fatalf("%+v %v", plan, err)
			}
			w.produce(t, ids(10, 20)...)
			w.await(t, w.at(t, 20))
			end()
			w.exact(t, 20)
		})
	}
}

// A rewind under a running member: it goes back by itself, what is read again changes
// nothing, and the group's own offset follows it. One behind it, of a stopped group, is
// moved along. Neither is taken for a database that went back.
func TestRewind(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.produce(t, ids(0, 100)...)
	end := w.start(t)
	w.await(t, w.at(t, 100))
	plan, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 30})
	if err != nil || plan.ReadAgain != 70 || !strings.Contains(plan.Mirror, "left to the group's members") {
		t.Fatalf("%+v %v", plan, err)
	}
	duplicates := "SELECT coalesce(sum(duplicate), 0)::bigint FROM " + w.db.Relation("audit")
	w.await(t, func() bool { return w.count(t, duplicates) == 70 })
	w.await(t, w.at(t, 100))
	end()
	if plan, err = w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 0}); err != nil || plan.Mirror != "moved" {
		t.Fatalf("%+v %v", plan, err)
	}
	if at := w.mirrored(t); at != 0 {
		t.Errorf("the group's offset is %d", at)
	}
	w.produce(t, ids(100, 110)...)
	w.run(t, w.at(t, 110))
	w.exact(t, 110)
	if n := w.count(t, duplicates); n != 170 {
		t.Errorf("%d duplicates", n)
	}
}

// A member takes the partition over while the group's own offset is still ahead: it
// was that of a member that died right behind the decision.
func TestRewindWhileTheGroupsOffsetIsAhead(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.admin(t)
	w.produce(t, ids(0, 100)...)
	w.run(t, w.at(t, 100))
	if at := w.mirrored(t); at != 100 {
		t.Fatalf("the group's offset is %d", at)
	}
	if _, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 30}); err != nil {
		t.Fatal(err)
	}
	w.commitOurs(t, 100)
	w.run(t, w.at(t, 100))
	w.exact(t, 100)
	// And the other way round: nothing was decided about this one.
	w.db.Exec(t, "UPDATE "+w.db.Relation("positions")+" SET next_offset = 30")
	w.commitOurs(t, 101)
	end := w.start(t)
	w.await(t, w.stopped("mirror_ahead"))
	if _, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 30}); err != nil { // what the cause says
		t.Fatal(err)
	}
	w.await(t, w.at(t, 100))
	end()
	w.exact(t, 100)
}

// commitOurs has the group's offset be one of ours, as a member commits it.
func (w *world) commitOurs(t *testing.T, at int64) {
	t.Helper()
	n := rebalance.Name{Topic: w.topic}
	if err := rebalance.Mirror(t.Context(), kadm.NewClient(kafkatest.Client(t, w.broker)), w.cfg.Pipeline, w.cfg.Group, n, at); err != nil {
		t.Fatal(err)
	}
}

// Two operators accept the same loss at once: it is accepted once, and the other one
// is told.
func TestTwoOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.produce(t, ids(0, 10)...)
	w.run(t, w.at(t, 10))
	w.produce(t, ids(10, 100)...)
	w.deleteTo(t, 40)
	errs := make(chan error, 4)
	for range cap(errs) {
		go func() {
			_, err := w.resolve(t, processor.Resolution{Verb: processor.AcceptLoss})
			errs <- err
		}()
	}
	accepted := 0
	for range cap(errs) {
		switch err := <-errs; {
		case err == nil:
			accepted++
		case !errors.Is(err, offsets.ErrMoved) && !errors.Is(err, processor.ErrNothingLost):
			t.Error(err)
		}
	}
	decisions := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions"))
	if accepted != 1 || decisions != 1 || w.position(t) != 40 {
		t.Errorf("accepted by %d, %d decisions, at %d", accepted, decisions, w.position(t))
	}
}

// A batch commits between the plan and the decision. Sent back, the partition is sent
// back from where it is by then; but the decision is refused where the position is
// somebody else's, or behind what was looked at.
func TestADecisionAboutAPositionThatMoved(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change string
		moved  bool
		at     int64
	}{
		"on":           {"next_offset = 11", false, 3},
		"back":         {"next_offset = 9", true, 9},
		"to another":   {"owner = gen_random_uuid()", true, 10},
		"of a decider": {"owner = NULL, next_offset = 11", true, 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onKafka(t, 1)
			w.produce(t, ids(0, 11)...)
			w.run(t, w.at(t, 11))
			w.db.Exec(t, "UPDATE "+w.db.Relation("positions")+" SET next_offset = 10")
			tx, err := w.db.Owner.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), "UPDATE "+w.db.Relation("positions")+" SET "+c.change); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() {
				_, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 3})
				ended <- err
			}()
			w.await(t, func() bool {
				return w.count(t, "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))", int32(tx.Conn().PgConn().PID())) > 0
			})
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-ended; errors.Is(err, offsets.ErrMoved) != c.moved || err != nil && !c.moved {
				t.Errorf("%v", err)
			}
			if at := w.position(t); at != c.at {
				t.Errorf("at %d", at)
			}
			if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+" WHERE detail->'from'->'offset' = '11'"); (n == 1) == c.moved {
				t.Errorf("%d decisions from 11", n)
			}
		})
	}
}

// A position is sent back under a member that never stops committing.
func TestRewindOfABusyPartition(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.cfg.BatchRecords = 10
	w.produce(t, ids(0, 3000)...)
	end := w.start(t)
	w.await(t, func() bool { return w.position(t) > 100 })
	if _, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 50}); err != nil {
		t.Fatal(err)
	}
	w.await(t, w.at(t, 3000))
	end()
	w.exact(t, 3000)
	if n := w.count(t, "SELECT sum(duplicate)::bigint FROM "+w.db.Relation("audit")); n < 50 {
		t.Errorf("%d duplicates", n)
	}
}

// Keys that are not known any more: older than the retention by the records' times, or
// from before a change of the rule that forgot them. Sent back over them, records would
// be applied again; that must be permitted.
func TestRewindOverForgottenKeys(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		prepare func(*testing.T, *world)
		known   int64
	}{
		"retention": {func(t *testing.T, w *world) {
			old := time.Now().Add(-3 * time.Hour)
			for i, id := range ids(0, 60) { // record 58 is what a later batch has also reached, two hours before it is record 18
				if i == 59 {
					w.run(t, w.at(t, 59))
				}
				w.produceAt(t, old.Add(time.Duration(i)*3*time.Minute), id)
			}
			w.run(t, w.at(t, 60))
			w.cfg.DedupRetention, w.cfg.ShortRetention = 2*time.Hour, true
		}, 18},
		"another rule": {func(t *testing.T, w *world) {
			w.produce(t, ids(0, 40)...)
			w.run(t, w.at(t, 40))
			w.cfg.Key = []string{"kafka:key"}
			if _, err := w.migrate(t, processor.Migration{Apply: true, Forget: true}); err != nil {
				t.Fatal(err)
			}
			w.produce(t, ids(40, 60)...)
			w.run(t, w.at(t, 60))
		}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onKafka(t, 1)
			c.prepare(t, w)
			if plan, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 10}); !errors.Is(err, processor.ErrAgain) || plan.Forgotten != c.known-10 {
				t.Errorf("%+v %v", plan, err)
			}
			if at := w.position(t); at != 60 {
				t.Fatalf("at %d", at)
			}
			if plan, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: c.known}); err != nil || plan.Forgotten != 0 {
				t.Errorf("%+v %v", plan, err)
			}
			if _, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 10, Again: true}); err != nil {
				t.Error(err)
			}
		})
	}
}

// produceAt is produce of one record with a time.
func (w *world) produceAt(t *testing.T, at time.Time, id string) {
	t.Helper()
	kafkatest.ProduceTo(t, w.broker, &kgo.Record{Topic: w.topic, Key: []byte(id), Timestamp: at, Value: []byte(fmt.Sprintf(`{"order_id":%q,"amount":1}`, id))})
}

// Records without a key, known by their offsets: behind the end of a log that was cut,
// new ones would be taken for the old ones. That must be permitted.
func TestKeylessRecordsBehindACut(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.cfg.KeyMissing = processor.KeyCoordinates
	w.produce(t, ids(0, 10)...)
	w.run(t, w.at(t, 10))
	w.db.Exec(t, "UPDATE "+w.db.Relation("positions")+" SET next_offset = 200, leader_epoch = -1")
	if _, err := w.resolve(t, processor.Resolution{Verb: processor.AcceptLoss}); !errors.Is(err, processor.ErrKeyless) {
		t.Errorf("%v", err)
	}
	if plan, err := w.resolve(t, processor.Resolution{Verb: processor.AcceptLoss, Keyless: true}); err != nil || plan.To.Offset != 10 {
		t.Errorf("%+v %v", plan, err)
	}
	if _, err := w.resolve(t, processor.Resolution{Verb: processor.Rewind, To: 5}); err != nil { // the same records
		t.Errorf("%v", err)
	}
}
