package rebalance_test

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/rebalance"
)

// resets are the decisions about partition 0.
func (w *world) resets() []string {
	w.t.Helper()
	rows, err := w.Owner.Query(w.t.Context(), `SELECT kind || ' ' || (detail->>'from') || ' to ' || (detail->>'to') || ', ' || reason FROM `+
		w.Relation("decisions")+` WHERE topic_id = $1 AND partition = 0 ORDER BY id`, [16]byte(w.topic.ID))
	if err != nil {
		w.t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

func honours(w *world) rebalance.Config {
	w.t.Helper()
	cfg := w.config()
	cfg.OnReset = "honour"
	return cfg
}

const policy = ", policy on_external_reset: honour"

// TestHonour: the position goes where the group's offset was moved, by a decision that
// says from where to where, also after a wait; the group's offset is ours then. What
// cannot be honoured stops the partition where it is.
func TestHonour(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		at      int64
		change  func(*world, *rebalance.Config)
		refused string
	}{
		{name: "back", at: 1},
		{name: "back to 0", at: 0},
		{name: "forward", at: 9},
		{name: "to the end", at: 10},
		{name: "beyond the end", at: 11, refused: "the log is [0, 10)"},
		{name: "below the start", at: 1, refused: "the log is [2, 10)", change: func(w *world, _ *rebalance.Config) {
			if err := w.fake.DeleteRecords(topic, 0, 2); err != nil {
				w.t.Error(err)
			}
		}},
		{name: "back without a key", at: 1, refused: "no business key", change: func(_ *world, cfg *rebalance.Config) { cfg.Keyless = true }},
		{name: "forward without a key", at: 9, change: func(_ *world, cfg *rebalance.Config) { cfg.Keyless = true }},
		{name: "back beyond the retention", at: 1, refused: "keys of records below 10 may be forgotten", change: func(w *world, cfg *rebalance.Config) {
			w.set(0, "progress = now() + interval '2 hours'")
			cfg.Retention = time.Hour
		}},
		{name: "back within the retention", at: 1, change: func(w *world, cfg *rebalance.Config) {
			w.set(0, "progress = now() + interval '2 hours'")
			cfg.Retention = 3 * time.Hour
		}},
		{name: "back before a key rule that forgot keys", at: 1, refused: "keys of records below 4 may be forgotten", change: func(w *world, _ *rebalance.Config) {
			w.forgot()
		}},
		{name: "forward behind a key rule that forgot keys", at: 9, change: func(w *world, _ *rebalance.Config) { w.forgot() }},
		{name: "back, cut without a known fork, records known by their offset", at: 1, refused: "known by their offset", change: func(w *world, cfg *rebalance.Config) {
			w.set(0, "next_offset = 14, leader_epoch = -1")
			cfg.ByOffset = true
		}},
	} {
		for _, locked := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", after a wait"}[locked], func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, 4)
				w.set(0, "leader_epoch = 0")
				w.commit(pipeline, 0, c.at, "")
				cfg := honours(w)
				if c.change != nil {
					c.change(w, &cfg)
				}
				free := func() {}
				if locked {
					tx := w.lock(w.session("other"), 0)
					free = func() { tx.Rollback(t.Context()) }
				}
				m := w.join(cfg)
				if locked {
					m.await("waiting", 0)
				}
				free()
				if c.refused != "" {
					if e := m.stopped(0, "external_reset"); !strings.Contains(e.Cause.Text, c.refused) {
						t.Errorf("%s", e.Cause)
					}
					if row := w.row(0); row.Next == c.at || len(w.resets()) != 0 {
						t.Errorf("%+v, %v", row, w.resets())
					}
					return
				}
				m.await("external_reset", 0)
				if e := m.await("takeover", 0); e.Claim.Next != c.at || e.Claim.LeaderEpoch != -1 {
					t.Errorf("%+v", e.Claim)
				}
				m.reads(0, c.at, 10)
				w.becomesOurs(0, c.at)
				if row := w.row(0); row.Next != c.at {
					t.Errorf("%+v", row)
				}
				if diff := cmp.Diff([]string{fmt.Sprintf("external_reset 4 to %d%s", c.at, policy)}, w.resets()); diff != "" {
					t.Errorf("decisions (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// forgot writes down that the key rule was changed and keys were forgotten.
func (w *world) forgot() {
	w.t.Helper()
	w.Exec(w.t, "INSERT INTO "+w.Relation("decisions")+` (pipeline, topic_id, kind, detail) VALUES ($1, $2, 'change', '{"kept": false}')`,
		w.id, [16]byte(w.topic.ID))
}

// TestATruncationIsSeenBeforeAReset: the log was cut below the position, and then the
// group's offset was moved from outside. Honoured, it would forget the leader epoch that
// tells where the logs part, and records of the new branch before it would never be
// applied.
func TestATruncationIsSeenBeforeAReset(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{1, 3, 9} {
		w := newWorld(t, 1, 4)
		w.set(0, "leader_epoch = 0")
		w.truncatedTo(2)
		w.commit(pipeline, 0, at, "")
		m := w.join(honours(w))
		m.stopped(0, "truncated")
		if row := w.row(0); row.Next != 4 || row.LeaderEpoch != 0 || len(w.resets()) != 0 {
			t.Errorf("%+v, %v", row, w.resets())
		}
	}
}

// TestHonouredOnce: the member dies between the decision and its first commit to
// Kafka, where the group's offset still is the one from outside. Nothing was applied
// meanwhile, so the next member has nothing to decide, however often that happens. A
// second reset to the same offset is another one.
func TestHonouredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 4)
	w.commit(pipeline, 0, 1, "")
	var refusing atomic.Bool
	refusing.Store(true)
	w.fake.ControlKey(kmsg.OffsetCommit.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if !refusing.Load() {
			return nil, nil, false
		}
		w.fake.KeepControl()
		return refused(kreq, kerr.RebalanceInProgress), nil, true
	})
	for range 3 {
		m := w.join(honours(w))
		m.await("retry", 0)
		m.stop()
		if len(m.open) > 0 {
			t.Error("it was opened before the group's offset was ours")
		}
		if row := w.row(0); row.Next != 1 {
			t.Errorf("%+v", row)
		}
	}
	refusing.Store(false)
	m := w.join(honours(w))
	m.reads(0, 1, 10)
	w.becomesOurs(0, 1)
	w.set(0, "next_offset = 8") // records were applied
	m.stop()
	once := []string{"external_reset 4 to 1" + policy}
	if diff := cmp.Diff(once, w.resets()); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	w.commit(pipeline, 0, 1, "")
	m = w.join(honours(w))
	m.reads(0, 1, 10)
	if diff := cmp.Diff(append(once, "external_reset 8 to 1"+policy), w.resets()); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
}

// refused is an answer to an offset commit that refuses all of it.
func refused(kreq kmsg.Request, why *kerr.Error) kmsg.Response {
	req, ok := kreq.(*kmsg.OffsetCommitRequest)
	if !ok {
		return nil
	}
	resp, _ := req.ResponseKind().(*kmsg.OffsetCommitResponse) // its kind
	for _, rt := range req.Topics {
		st := kmsg.NewOffsetCommitResponseTopic()
		st.Topic, st.TopicID = rt.Topic, rt.TopicID
		for _, rp := range rt.Partitions {
			sp := kmsg.NewOffsetCommitResponseTopicPartition()
			sp.Partition, sp.ErrorCode = rp.Partition, why.Code
			st.Partitions = append(st.Partitions, sp)
		}
		resp.Topics = append(resp.Topics, st)
	}
	return resp
}

// TestAStaleMirrorIsNotHonoured: the partition has waited since it was assigned, and
// the group's offset is ours by now. What it was then decides nothing.
func TestAStaleMirrorIsNotHonoured(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 4)
	w.commit(pipeline, 0, 1, "")
	tx := w.lock(w.session("other"), 0)
	m := w.join(honours(w))
	m.await("waiting", 0)
	at := map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: 3}}}
	m.client.CommitOffsetsSync(rebalance.Stamped(t.Context()), at, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, _ *kmsg.OffsetCommitResponse, err error) {
		if err != nil {
			t.Error(err)
		}
	})
	tx.Rollback(t.Context())
	m.await("takeover", 0)
	m.reads(0, 4, 10)
	if got := w.resets(); len(got) > 0 {
		t.Errorf("decisions: %v", got)
	}
}

// TestAResetThatStoppedIsDecidedAbout: a partition that stopped at a reset, or one that
// cannot be honoured, or one of ours ahead found after a wait, goes on where an operator
// says, without a restart; the group's offset is ours from then on.
func TestAResetThatStoppedIsDecidedAbout(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		onReset, metadata, cause string
		at                       int64
	}{
		{"fail", "", "external_reset", 1},
		{"honour", "", "external_reset", 11},
		{"warn", ours, "mirror_ahead", 9},
	} {
		t.Run(c.onReset, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, 4)
			w.commit(pipeline, 0, c.at, c.metadata)
			cfg := w.config()
			cfg.OnReset = c.onReset
			tx := w.lock(w.session("other"), 0)
			m := w.join(cfg)
			m.await("waiting", 0)
			tx.Rollback(t.Context())
			if e := m.stopped(0, c.cause); !strings.Contains(e.Cause.Fix, "partitions resolve orders/0 --rewind-to 4") {
				t.Errorf("%s", e.Cause)
			}
			w.awaitWritten(0, c.cause)
			w.decide(0, 4)
			m.reads(0, 4, 10)
			if c.metadata == "" {
				w.becomesOurs(0, 4)
			}
		})
	}
}
