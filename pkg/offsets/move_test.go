package offsets_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// move decides about partition n as it was read.
func (w *world) move(conn *pgx.Conn, n int32, owner stream.UUID, from, to int64) error {
	w.t.Helper()
	return w.tx(conn, func(tx *pgtx.Tx) error {
		return w.store.Move(w.t.Context(), tx, w.id, offsets.Move{
			Partition: part(n), Owner: owner, Generation: gen, From: from, To: to, LeaderEpoch: 2, Mirror: -1,
		}, offsets.Decision{Kind: "rewind", Reason: "test", Detail: []byte("{}")})
	})
}

// standings is what Postgres knows of all partitions, a line each.
func (w *world) standings() (out []string) {
	w.t.Helper()
	if err := pgtx.Once(w.t.Context(), w.conn, patient, w.store.Standings(w.id, nil, func(s offsets.Standing) {
		out = append(out, fmt.Sprintf("%d exists %v at %d by %q stop %q", s.Partition.Number, s.Exists, s.Next, s.Holder, s.Stop.Code))
	})); err != nil {
		w.t.Fatal(err)
	}
	return out
}

func (w *world) decisions() (n int) {
	w.t.Helper()
	if err := w.Owner.QueryRow(w.t.Context(), "SELECT count(*) FROM "+w.Relation("decisions")+" WHERE partition = 1 AND topic_id = $1", [16]byte(topic)).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// A decision fences the claim in flight, forgets the stop and is written down.
func TestMoveFencesTheClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	claim := w.claim(1, 'a')
	if err := pgtx.Once(t.Context(), w.conn, patient, w.store.Stopped(w.id, "here", []offsets.Stop{{Claim: claim, Code: "setup"}})); err != nil {
		t.Fatal(err)
	}
	if err := w.move(w.session(), 1, claim.Owner, 100, 30); err != nil {
		t.Fatal(err)
	}
	w.want("moved", "0 at 0 owner none epoch 0 by ", "1 at 30 owner none epoch 1 by ")
	if diff := cmp.Diff([]string{`0 exists true at 0 by "" stop ""`, `1 exists true at 30 by "" stop ""`}, w.standings()); diff != "" {
		t.Error(diff)
	}
	if err := w.advance(w.conn, 1, claim); pgtx.Code(err) != pgtx.CodeFenced {
		t.Errorf("the claim in flight: %v", err)
	}
	if n := w.decisions(); n != 1 {
		t.Errorf("%d decisions", n)
	}
	var from int64
	if err := w.Owner.QueryRow(t.Context(), "SELECT rewound_from FROM "+w.Relation("positions")+" WHERE partition = 1").Scan(&from); err != nil || from != 100 {
		t.Errorf("rewound from %d: %v", from, err)
	}
}

// A decision about a position, an owner or a meaning that is not there any more
// changes nothing and is not written down.
func TestMoveOfWhatMoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	claim := w.claim(1, 'a')
	for _, c := range []struct {
		what  string
		owner stream.UUID
		from  int64
		gen   []byte
	}{
		{"another position", claim.Owner, 99, gen},
		{"another owner", stream.UUID{'b'}, 100, gen},
		{"no owner", stream.UUID{}, 100, gen},
		{"another generation", claim.Owner, 100, second},
	} {
		err := w.tx(w.conn, func(tx *pgtx.Tx) error {
			return w.store.Move(t.Context(), tx, w.id, offsets.Move{Partition: part(1), Owner: c.owner, Generation: c.gen, From: c.from, To: 30, Mirror: -1},
				offsets.Decision{Kind: "rewind", Detail: []byte("{}")})
		})
		if !errors.Is(err, offsets.ErrMoved) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	w.want("nothing moved", "0 at 0 owner none epoch 0 by ", "1 at 100 owner 61 epoch 1 by host")
	if n := w.decisions(); n != 0 {
		t.Errorf("%d decisions", n)
	}
}

// A decision waits for the batch in flight, and is refused when that has moved the
// position: it was made about another one.
func TestMoveWaitsForTheBatchInFlight(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	claim := w.claim(1, 'a')
	var xact string
	batch, err := pgtx.Begin(t.Context(), w.conn, patient, w.store.Fence(w.id, []offsets.Advance{{Claim: claim, Generation: gen, To: 105}}, &xact))
	if err != nil {
		t.Fatal(err)
	}
	operator, ended := w.session(), make(chan error, 1)
	go func() { ended <- w.move(operator, 1, claim.Owner, 100, 30) }()
	w.waits(operator, ended)
	if err := batch.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, offsets.ErrMoved) {
		t.Errorf("%v", err)
	}
	w.want("the batch won", "0 at 0 owner none epoch 0 by ", "1 at 105 owner 61 epoch 1 by host")
}

// A stop is written for the claim that is the position's, or where there is no
// position; a member that stops late, behind a decision or another takeover, writes
// nothing. It goes when its claim's successor runs.
func TestStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	stop := func(c stream.Claim, code string) {
		t.Helper()
		stops := []offsets.Stop{{Claim: c, Code: code, Unclaimed: code == "missing_position"}}
		if err := pgtx.Once(t.Context(), w.conn, patient, w.store.Stopped(w.id, "here", stops)); err != nil {
			t.Fatal(err)
		}
	}
	old := w.claim(1, 'a')
	stop(old, "setup")
	stop(stream.Claim{Partition: part(7), Owner: stream.UUID{'x'}}, "missing_position")
	want := []string{`0 exists true at 0 by "" stop ""`, `1 exists true at 100 by "host" stop "setup"`, `7 exists false at 0 by "" stop "missing_position"`}
	if diff := cmp.Diff(want, w.standings()); diff != "" {
		t.Errorf("stopped: %s", diff)
	}
	next := w.claim(1, 'b')
	stop(old, "poison_flood")
	want[1] = `1 exists true at 100 by "host" stop ""`
	if diff := cmp.Diff(want, w.standings()); diff != "" {
		t.Errorf("taken over: %s", diff)
	}
	stop(next, "setup")
	runs := func(c stream.Claim) {
		t.Helper()
		if err := pgtx.Once(t.Context(), w.conn, patient, w.store.Runs(w.id, []stream.Claim{c})); err != nil {
			t.Fatal(err)
		}
	}
	runs(old)
	var n int
	count := func() int {
		t.Helper()
		if err := w.Owner.QueryRow(t.Context(), "SELECT count(*) FROM "+w.Relation("stops")+" WHERE partition = 1").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if count() != 1 {
		t.Error("an old claim took the stop of the next one away")
	}
	if runs(next); count() != 0 {
		t.Error("it runs and is said to be stopped")
	}
}
