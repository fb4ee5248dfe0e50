package rebalance_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// TestGrowth: with a business key the new partitions stop, since a key may come on
// two partitions now; the old ones go on.
func TestGrowth(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 5)
	m := w.join(w.config())
	m.reads(0, 5, 10)
	for _, n := range []int32{1, 2} {
		if h := m.held(n); h.State != rebalance.Stopped || h.Cause.Code != "growth" {
			t.Errorf("%+v", h)
		}
	}
	if paused := m.client.PauseFetchPartitions(nil)[topic]; len(paused) != 2 {
		t.Errorf("paused %v", paused)
	}
}

// TestGrows: without a key they are added, at their first offset.
func TestGrows(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 5)
	if err := w.fake.DeleteRecords(topic, 2, 4); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.Grows = true
	m := w.join(cfg)
	m.reads(0, 5, 10)
	m.reads(1, 0, 10)
	m.reads(2, 4, 10)
	w.counts(3)
}

// counts checks that the topic's row, positions and logs agree.
func (w *world) counts(want int) {
	w.t.Helper()
	var partitions, positions, logs int
	if err := w.Owner.QueryRow(w.t.Context(), `SELECT (SELECT partitions FROM `+w.Relation("topics")+`), (SELECT count(*) FROM `+w.Relation("positions")+`),
		(SELECT count(*) FROM `+w.Relation("logs")+`)`).Scan(&partitions, &positions, &logs); err != nil {
		w.t.Fatal(err)
	}
	if partitions != want || positions != want || logs != want {
		w.t.Errorf("%d partitions, %d positions, %d logs, want %d", partitions, positions, logs, want)
	}
}

// TestGrowsBesideAnother: another member grew the topic when it had fewer
// partitions. Ours must not take its count for its own, which would leave a log
// without a position and stop a partition as if the database were the wrong one.
func TestGrowsBesideAnother(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 5)
	tx, err := pgtx.Begin(t.Context(), w.Conn(t), patient)
	if err != nil {
		t.Fatal(err)
	}
	row := offsets.Topic{ID: w.topic.ID, Name: topic, Partitions: 1, Generation: gen}
	if err := w.store.Grow(t.Context(), tx, w.id, row, []int64{7}); err != nil {
		t.Fatal(err)
	}
	if err := w.log.Create(t.Context(), tx, w.id, w.topic.ID, 1, 1, gen); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.Grows = true
	m := w.join(cfg)
	m.reads(1, 7, 10)
	m.reads(2, 0, 10)
	m.reads(3, 0, 10)
	m.reads(0, 5, 10)
	w.counts(4)
}

// TestMissingPosition is never simply the start setting.
func TestMissingPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	w.Exec(t, "DELETE FROM "+w.Relation("positions")+" WHERE partition = 1")
	cfg := w.config()
	cfg.Grows = true // not even then
	m := w.join(cfg)
	m.stopped(1, "missing_position")
	m.reads(0, 0, 10)
}

// TestGeneration: the pipeline means something else now.
func TestGeneration(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	w.set(0, "generation = 'other'")
	m := w.join(w.config())
	m.stopped(0, "generation")
	m.reads(1, 0, 10)
	if row := w.row(0); row.Owner != (stream.UUID{}) {
		t.Errorf("%+v", row)
	}
}

// TestTopicID: fetches of another topic id than the positions' stop all partitions
// of the topic; a broker that does not tell stops none.
func TestTopicID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.reads(1, 0, 10)
	m.group.TopicID(topic, w.topic.ID)
	m.group.TopicID(topic, stream.UUID{})
	m.group.TopicID("payments", stream.UUID{9})
	for n := range int32(2) {
		if h := m.held(n); h.State != rebalance.Running {
			t.Fatalf("%+v", h)
		}
	}
	m.group.TopicID(topic, stream.UUID{9})
	for n := range int32(2) {
		if h := m.held(n); h.State != rebalance.Stopped || h.Cause.Code != "recreated_topic" {
			t.Errorf("%+v", h)
		}
	}
}

// TestFailed: what a fetch error means for its partition.
func TestFailed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	for _, c := range []struct {
		err  error
		code string
	}{
		{kerr.NotLeaderForPartition, ""},
		{kerr.UnknownTopicID, "recreated_topic"},
		{kerr.InconsistentTopicID, "recreated_topic"},
		{kerr.UnknownTopicOrPartition, "recreated_topic"},
		{kerr.OffsetOutOfRange, "out_of_range"},
		{&kgo.ErrDataLoss{Topic: topic, ConsumedTo: 9, ResetTo: 5}, "truncated"},
		{&kgo.ErrDecompressTooLarge{}, "too_large"},
		{kerr.TopicAuthorizationFailed, "fetch"},
		{errors.New("anything else"), "fetch"},
	} {
		m := w.join(w.config())
		m.await("takeover", 0)
		stopped := m.group.Failed(name(0), c.err)
		if stopped != (c.code != "") {
			t.Errorf("%v: stopped %v", c.err, stopped)
		}
		if c.code != "" {
			m.stopped(0, c.code)
		} else if e := m.await("retry", 0); !errors.Is(e.Err, c.err) {
			t.Errorf("%v: told %v", c.err, e.Err)
		}
		if m.group.Failed(name(7), c.err) {
			t.Errorf("%v: a partition that is not held was stopped", c.err)
		}
		m.stop()
	}
}

// TestOutsideTheLog: a position below the log's start, or beyond its end, stops the
// partition with the exact range; no default decides.
func TestOutsideTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2, 50)
	if err := w.fake.DeleteRecords(topic, 0, 5); err != nil {
		t.Fatal(err)
	}
	m := w.join(w.config())
	// Each is told at once, and again when Kafka has named the range.
	want := map[int32]string{0: "[5, 10)", 1: "[0, 10)"}
	deadline := time.After(limit)
	for len(want) > 0 {
		select {
		case e := <-m.events:
			if log, ok := want[e.Name.Number]; ok && e.Cause.Code == "out_of_range" && strings.Contains(e.Cause.Text, log) {
				delete(want, e.Name.Number)
			}
		case <-deadline:
			t.Fatalf("not told: %v; held: %+v", want, m.group.Held())
		}
	}
	for n := range int32(2) {
		if h := m.held(n); h.State != rebalance.Stopped {
			t.Errorf("partition %d is %s", n, h.State)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.read[name(0)])+len(m.read[name(1)]) > 0 {
		t.Errorf("read %v", m.read)
	}
}

// truncatedTo makes the broker say that the leader epoch asked for ended at end.
func (w *world) truncatedTo(end int64, errs ...*kerr.Error) {
	w.fake.ControlKey(kmsg.OffsetForLeaderEpoch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		req, ok := kreq.(*kmsg.OffsetForLeaderEpochRequest)
		if !ok {
			return nil, nil, false
		}
		resp, _ := req.ResponseKind().(*kmsg.OffsetForLeaderEpochResponse) // its kind
		for _, rt := range req.Topics {
			st := kmsg.NewOffsetForLeaderEpochResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewOffsetForLeaderEpochResponseTopicPartition()
				sp.Partition, sp.LeaderEpoch, sp.EndOffset = rp.Partition, rp.LeaderEpoch, end
				if len(errs) > 0 {
					sp.ErrorCode = errs[0].Code
					errs = errs[1:]
				}
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
}

// TestTruncated: the log was cut below the position and may have been written again.
// Nothing of the new branch may be applied as if it were the old one, neither at the
// first takeover nor after a wait, where SetOffsets validates nothing.
func TestTruncated(t *testing.T) {
	t.Parallel()
	for _, locked := range []bool{false, true} {
		w := newWorld(t, 1, 8)
		w.set(0, "leader_epoch = 0")
		w.truncatedTo(5)
		free := func() {}
		if locked {
			tx := w.lock(w.session("other"), 0)
			free = func() { tx.Rollback(t.Context()) }
		}
		m := w.join(w.config())
		if locked {
			m.await("waiting", 0)
		}
		free()
		if e := m.stopped(0, "truncated"); !strings.Contains(e.Cause.Text, "truncated to offset 5") || !strings.Contains(e.Cause.Text, "up to 8") {
			t.Errorf("locked %v: %s", locked, e.Cause)
		}
		m.stop()
		if got := m.read[name(0)]; len(got) > 0 {
			t.Errorf("locked %v: read %v", locked, got)
		}
	}
}

// TestLeaderEpochUnknown: while Kafka does not say where the epoch ends, the
// partition waits; then it starts.
func TestLeaderEpochUnknown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 8)
	w.set(0, "leader_epoch = 0")
	tx := w.lock(w.session("other"), 0)
	m := w.join(w.config())
	m.await("waiting", 0)
	w.truncatedTo(10, kerr.TopicAuthorizationFailed)
	tx.Rollback(t.Context())
	for e := m.await("waiting", 0); e.Cause.Code != "leader_epoch"; e = m.await("waiting", 0) {
		if e.Cause.Code != "locked" {
			t.Errorf("%+v", e.Cause)
		}
	}
	m.await("takeover", 0)
	m.reads(0, 8, 10)
}
