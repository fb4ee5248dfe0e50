package offsets_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// outcomes are the answers as text, in their order.
func outcomes(answers []offsets.Answer) []string {
	var out []string
	for _, a := range answers {
		out = append(out, string(a.Outcome))
	}
	return out
}

// TestTakeover meets every outcome in one statement, without waiting for anyone.
func TestTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.claim(1, 'z')
	w.Exec(t, "UPDATE "+w.Relation("positions")+" SET generation = 'other' WHERE partition = 2")
	// A transaction that has fenced partition 1, and another that has locked 2's.
	holder := w.session()
	tx, err := pgtx.Begin(t.Context(), holder, patient, w.store.Read(w.id, []stream.Partition{part(1), part(2)}, true, func(offsets.Row) {}))
	if err != nil {
		t.Fatal(err)
	}
	ts := []offsets.Taking{taking(3, 'a'), taking(9, 'a'), taking(2, 'a'), taking(1, 'a'), taking(0, 'a')}
	got := w.takeover(w.conn, "me", false, ts...)
	if diff := cmp.Diff([]string{"taken", "missing", "generation", "locked", "taken"}, outcomes(got)); diff != "" {
		t.Error(diff)
	}
	want := []stream.Claim{
		{Partition: part(3), TopicName: "orders", Owner: stream.UUID{'a'}, Epoch: 1, Next: 300, LeaderEpoch: -1},
		{Partition: part(9), TopicName: "orders", Owner: stream.UUID{'a'}, LeaderEpoch: -1},
		{Partition: part(2), TopicName: "orders", Owner: stream.UUID{'a'}, Next: 200, LeaderEpoch: -1},
		{Partition: part(1), TopicName: "orders", Owner: stream.UUID{'a'}, Epoch: 1, Next: 100, LeaderEpoch: -1},
		{Partition: part(0), TopicName: "orders", Owner: stream.UUID{'a'}, Epoch: 1, LeaderEpoch: -1},
	}
	for i, a := range got {
		if diff := cmp.Diff(want[i], a.Claim); diff != "" {
			t.Errorf("answer %d: %s", i, diff)
		}
	}
	if got[3].Holder != "host" || got[0].Holder != "me" {
		t.Errorf("holders %q and %q", got[3].Holder, got[0].Holder)
	}
	w.want("while it is locked", "0 at 0 owner 61 epoch 1 by me", "1 at 100 owner 7a epoch 1 by host",
		"2 at 200 owner none epoch 0 by ", "3 at 300 owner 61 epoch 1 by me")

	// Again, with the same owners: nothing rises, and what was locked is taken now.
	tx.Rollback(t.Context())
	got = w.takeover(w.conn, "me", false, ts...)
	if diff := cmp.Diff([]string{"taken", "missing", "generation", "taken", "taken"}, outcomes(got)); diff != "" {
		t.Error(diff)
	}
	w.want("once it is free", "0 at 0 owner 61 epoch 1 by me", "1 at 100 owner 61 epoch 2 by me",
		"2 at 200 owner none epoch 0 by ", "3 at 300 owner 61 epoch 1 by me")
}

// TestTakeoverIdempotent: the epoch counts owners, not attempts.
func TestTakeoverIdempotent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	for i, step := range []struct {
		owner byte
		epoch int64
	}{{'a', 1}, {'a', 1}, {'b', 2}, {'b', 2}, {'a', 3}} {
		if c := w.claim(0, step.owner); c.Epoch != step.epoch {
			t.Errorf("takeover %d by %c: epoch %d, want %d", i, step.owner, c.Epoch, step.epoch)
		}
	}
	// A repeat does not disturb a batch of the same claim.
	c := w.claim(0, 'a')
	if err := w.advance(w.conn, 4, c); err != nil {
		t.Fatal(err)
	}
	if again := w.claim(0, 'a'); again.Next != 4 || again.Epoch != 3 {
		t.Errorf("%+v", again)
	}
}

// TestTakeoverNothing asks for no partition.
func TestTakeoverNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if got := w.takeover(w.conn, "me", false); len(got) != 0 {
		t.Errorf("%v", got)
	}
}

// TestTakeoverWaits up to the lock timeout, and takes nothing then.
func TestTakeoverWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	holder := w.session()
	tx, err := pgtx.Begin(t.Context(), holder, patient, w.store.Read(w.id, []stream.Partition{part(1)}, true, func(offsets.Row) {}))
	if err != nil {
		t.Fatal(err)
	}
	set := pgtx.Settings{Lock: 50 * time.Millisecond, Statement: 20 * time.Second, Idle: 20 * time.Second}
	_, err = w.store.Takeover(t.Context(), w.conn, set, w.id, "me", []offsets.Taking{taking(0, 'a'), taking(1, 'a')}, true)
	if pgtx.Code(err) != "55P03" {
		t.Errorf("%v, want lock_not_available", err)
	}
	w.want("timed out", "0 at 0 owner none epoch 0 by ", "1 at 100 owner none epoch 0 by ")
	tx.Rollback(t.Context())
	if diff := cmp.Diff([]string{"taken", "taken"}, outcomes(w.takeover(w.conn, "me", true, taking(1, 'a'), taking(0, 'a')))); diff != "" {
		t.Error(diff)
	}
}

// TestRead gives the rows that are there, in lock order, and locks them if asked.
func TestRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	w.claim(2, 'a')
	for _, lock := range []bool{false, true} {
		var got []offsets.Row
		tx, err := pgtx.Begin(t.Context(), w.conn, patient,
			w.store.Read(w.id, []stream.Partition{part(2), part(8), part(1)}, lock, func(r offsets.Row) { got = append(got, r) }))
		if err != nil {
			t.Fatal(err)
		}
		want := []offsets.Row{
			{Partition: part(1), Next: 100, LeaderEpoch: -1, Generation: gen, Rewound: -1},
			{Partition: part(2), Next: 200, LeaderEpoch: -1, Owner: stream.UUID{'a'}, Holder: "host", Generation: gen, Rewound: -1},
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("lock %v: %s", lock, diff)
		}
		other := outcomes(w.takeover(w.session(), "other", false, taking(1, 'x'), taking(0, 'y')))
		first := map[bool]string{false: "taken", true: "locked"}[lock]
		if diff := cmp.Diff([]string{first, "taken"}, other); diff != "" {
			t.Errorf("lock %v: %s", lock, diff)
		}
		tx.Rollback(t.Context())
		w.Exec(t, "UPDATE "+w.Relation("positions")+" SET owner = NULL, holder = '', epoch = 0 WHERE partition < 2")
	}
}
