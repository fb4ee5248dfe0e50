package rebalance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/rebalance"
)

const ours = "eo1 " + pipeline

// commit writes a group offset from outside, as kafka-consumer-groups does; the
// group must have no members.
func (w *world) commit(group string, n int32, offset int64, metadata string) {
	w.t.Helper()
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: topic, Partition: n, At: offset, LeaderEpoch: -1, Metadata: metadata})
	if err := w.adm.CommitAllOffsets(w.t.Context(), group, o); err != nil {
		w.t.Fatal(err)
	}
}

// committed waits until the group's offset of partition n is at, and returns its
// metadata.
func (w *world) committed(n int32, at int64) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), limit)
	defer cancel()
	for {
		got, err := w.adm.FetchOffsets(ctx, pipeline)
		if err != nil {
			w.t.Fatalf("group offset of %d is not at %d: %v", n, at, err)
		}
		if o, ok := got.Lookup(topic, n); ok && o.At == at {
			return o.Metadata
		}
	}
}

// TestMirrorIsStamped: what the interval commits, and what leaving commits, carries
// our metadata. Any other would look like somebody else's reset.
func TestMirrorIsStamped(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	m := w.join(w.config(), kgo.AutoCommitInterval(100*time.Millisecond))
	m.reads(0, 2, 10)
	mark := func(at int64) {
		m.client.MarkCommitOffsets(map[string]map[int32]kgo.EpochOffset{topic: {0: {Epoch: -1, Offset: at}}})
	}
	mark(6)
	if md := w.committed(0, 6); md != ours {
		t.Errorf("the interval committed %q", md)
	}
	mark(9)
	if err := m.group.Leave(t.Context()); err != nil {
		t.Error(err)
	}
	m.stop()
	if md := w.committed(0, 9); md != ours {
		t.Errorf("leaving committed %q", md)
	}
}

// TestMirror: what the group has committed, against the position.
func TestMirror(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		at       int64
		metadata string
		onReset  string
		event    string
		stop     string
	}{
		{name: "ours at the position", at: 4, metadata: ours},
		{name: "ours behind", at: 2, metadata: ours},
		{name: "ours ahead", at: 5, metadata: ours, stop: "mirror_ahead"},
		{name: "ours ahead, resets are failures", at: 5, metadata: ours, onReset: "fail", stop: "mirror_ahead"},
		{name: "of nobody at the position", at: 4, onReset: "fail"},
		{name: "of nobody behind", at: 1, onReset: "warn", event: "external_reset"},
		{name: "of nobody ahead", at: 9, onReset: "warn", event: "external_reset"},
		{name: "of nobody behind, a failure", at: 1, onReset: "fail", stop: "external_reset"},
		{name: "of nobody ahead, a failure", at: 9, onReset: "fail", stop: "external_reset"},
		{name: "ours ahead, resets are honoured", at: 5, metadata: ours, onReset: "honour", stop: "mirror_ahead"},
		{name: "of nobody at the position, resets are honoured", at: 4, onReset: "honour"},
		{name: "of another pipeline", at: 5, metadata: ours + "q", onReset: "warn", event: "external_reset"},
	} {
		for _, locked := range []bool{false, true} {
			t.Run(c.name+map[bool]string{true: ", after a wait"}[locked], func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, 1, 4)
				w.commit(pipeline, 0, c.at, c.metadata)
				cfg := w.config()
				if c.onReset != "" {
					cfg.OnReset = c.onReset
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
				if c.event != "" {
					if e := m.await(c.event, 0); !strings.Contains(e.Cause.Text, "Postgres is at 4") {
						t.Errorf("%s", e.Cause)
					}
				}
				if c.stop != "" {
					m.stopped(0, c.stop)
				} else {
					m.reads(0, 4, 10)
					if c.metadata != ours {
						w.becomesOurs(0, 4)
					}
				}
				if next := w.row(0).Next; next != 4 {
					t.Errorf("the position was moved to %d", next)
				}
			})
		}
	}
}

// becomesOurs requires the group's offset to have our metadata by now.
func (w *world) becomesOurs(n int32, at int64) {
	w.t.Helper()
	got, err := w.adm.FetchOffsets(w.t.Context(), pipeline)
	if err != nil {
		w.t.Fatal(err)
	}
	if o, ok := got.Lookup(topic, n); !ok || o.At != at || o.Metadata != ours {
		w.t.Errorf("the group's offset is %d %q, want ours at %d", o.At, o.Metadata, at)
	}
}

// TestNothingIsOpenedBeforeTheMirrorIsOurs: opened first, a partition whose member is
// killed before its next commit to Kafka would be decided about again, from further
// on. While Kafka refuses our commit, it waits; people are told of the reset once.
func TestNothingIsOpenedBeforeTheMirrorIsOurs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 4, 4)
	w.commit(pipeline, 0, 1, "")
	w.commit(pipeline, 1, 4, ours)
	refusals := 0
	w.fake.ControlKey(kmsg.OffsetCommit.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if refusals == 2 {
			return nil, nil, false
		}
		refusals++
		w.fake.KeepControl()
		return refused(kreq, kerr.RebalanceInProgress), nil, true
	})
	m := w.join(w.config())
	m.reads(1, 4, 10) // nobody waits for another partition's mirror
	m.await("external_reset", 0)
	for range 2 {
		if e := m.await("retry", 0); !errors.Is(e.Err, kerr.RebalanceInProgress) {
			t.Errorf("%v", e.Err)
		}
		m.mu.Lock()
		if _, open := m.open[name(0)]; open {
			t.Error("it is open")
		}
		m.mu.Unlock()
	}
	m.reads(0, 4, 10)
	w.becomesOurs(0, 4)
	m.stop()
	close(m.events)
	for e := range m.events {
		if e.Kind == "external_reset" {
			t.Error("told again")
		}
	}
}

// TestTheMirrorFollowsAnIdlePartition: its last owner was killed before it committed
// to Kafka, or Kafka has forgotten the group. A lag tool would show a lag until the
// next record comes.
func TestTheMirrorFollowsAnIdlePartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 10, 10)
	w.commit(pipeline, 0, 7, ours)
	w.join(w.config())
	for n := range int32(2) {
		if md := w.committed(n, 10); md != ours {
			t.Errorf("partition %d: %q", n, md)
		}
	}
}

// TestAnIdlePartitionIsJudgedOnce: a partition at which nothing is ever committed, as
// after moving in from another consumer, got no metadata of ours: each takeover found
// it moved from outside, though nobody had done anything since.
func TestAnIdlePartitionIsJudgedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 10)
	w.commit(pipeline, 0, 7, "")
	m := w.join(w.config())
	m.await("external_reset", 0)
	m.await("takeover", 0)
	m.stop()
	cfg := w.config()
	cfg.OnReset = "fail"
	m = w.join(cfg)
	m.await("takeover", 0)
	if h := m.held(0); h.State != rebalance.Running {
		t.Errorf("%+v", h)
	}
}

// TestMirrorOfAGivenUpClaim: the database went back under a running member, whose
// own commits are ahead now. It goes on from Postgres.
func TestMirrorOfAGivenUpClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 8)
	w.commit(pipeline, 0, 8, ours)
	m := w.join(w.config())
	claim := m.await("takeover", 0).Claim
	m.reads(0, 8, 10) // nothing is under way when the claim is given up
	w.set(0, "next_offset = 3")
	m.group.Fenced(t.Context(), claim.Owner, true)
	if e := m.await("takeover", 0); e.Claim.Next != 3 {
		t.Errorf("%+v", e.Claim)
	}
	m.reads(0, 3, 10)
	if h := m.held(0); h.State != rebalance.Running {
		t.Errorf("%+v", h)
	}
}
