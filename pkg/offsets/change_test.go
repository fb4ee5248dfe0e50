package offsets_test

import (
	"bytes"
	"testing"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

var second = []byte("another") //nolint:gochecknoglobals // a constant

// toTopic is the change of orders to scope topic and to two more partitions.
func toTopic(from []byte) offsets.Change {
	return offsets.Change{Topic: topic, From: from, To: second, Scope: stream.ScopeTopic, Count: 4, Starts: []int64{70, 80}}
}

func (w *world) change(c offsets.Change) error {
	w.t.Helper()
	return w.tx(w.session(), func(tx *pgtx.Tx) error { return w.store.ChangeGeneration(w.t.Context(), tx, w.id, c) })
}

// as asks for the same partition under another generation.
func as(t offsets.Taking, generation []byte) offsets.Taking {
	t.Generation = generation
	return t
}

// TestChangeFencesEveryClaim: the old owner's transaction fails at the fence, in
// either generation; a takeover needs the new one; partitions never seen are there.
func TestChangeFencesEveryClaim(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.Exec(t, "INSERT INTO "+w.Relation("positions")+" (pipeline, topic_id, partition, lane, next_offset, generation) VALUES ($1, $2, 0, 'replay', 5, $3)",
		w.id, [16]byte(topic), gen)
	claim := w.claim(0, 'a')
	if err := w.change(toTopic(gen)); err != nil {
		t.Fatal(err)
	}
	w.want("changed", "0 at 0 owner none epoch 1 by ", "0 at 5 owner none epoch 0 by ", "1 at 100 owner none epoch 0 by ",
		"2 at 70 owner none epoch 0 by ", "3 at 80 owner none epoch 0 by ")
	var all bool
	if err := w.Owner.QueryRow(t.Context(), "SELECT bool_and(generation = $1) FROM "+w.Relation("positions"), second).Scan(&all); err != nil || !all {
		t.Errorf("a position, perhaps of a lane, has another generation: %v", err)
	}
	for _, g := range [][]byte{gen, second} {
		var xact string
		a := offsets.Advance{Claim: claim, Generation: g, To: claim.Next + 1}
		if err := pgtx.Once(t.Context(), w.conn, patient, w.store.Fence(w.id, []offsets.Advance{a}, &xact)); pgtx.Code(err) != pgtx.CodeFenced {
			t.Errorf("the old owner under %q: %v", g, err)
		}
	}
	for _, n := range []int32{0, 1, 2} {
		if a := w.takeover(w.conn, "host", false, taking(n, 'a'))[0]; a.Outcome != offsets.Generation {
			t.Errorf("takeover of %d under the old generation: %s", n, a.Outcome)
		}
		if a := w.takeover(w.conn, "host", false, as(taking(n, 'b'), second))[0]; a.Outcome != offsets.Taken {
			t.Errorf("takeover of %d: %s", n, a.Outcome)
		}
	}
	var rows []offsets.Topic
	if err := w.tx(w.conn, func(tx *pgtx.Tx) (err error) {
		rows, err = w.store.Topics(t.Context(), tx, w.id, []string{"orders"})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if r := rows[0]; r.Scope != stream.ScopeTopic || r.Partitions != 4 || !bytes.Equal(r.Generation, second) {
		t.Errorf("%+v", r)
	}
}

// TestChangeAndBack: a claim that was made before two changes, the second of them
// back, meets its own generation again. Its owner was taken away all the same: what
// was committed in between is not in its memory.
func TestChangeAndBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	claim := w.claim(0, 'a')
	back := toTopic(second)
	back.To, back.Scope, back.Starts = gen, stream.ScopePartition, nil
	for _, c := range []offsets.Change{toTopic(gen), back} {
		if err := w.change(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.advance(w.conn, 1, claim); pgtx.Code(err) != pgtx.CodeFenced {
		t.Errorf("%v", err)
	}
}

// TestChangeOnce: of two members that change a topic one does it. The second, which
// waited for the first or came later, learns it and changes nothing.
func TestChangeOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	first, err := pgtx.Begin(t.Context(), w.conn, patient)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.store.ChangeGeneration(t.Context(), first, w.id, toTopic(gen)); err != nil {
		t.Fatal(err)
	}
	conn, ended := w.session(), make(chan error, 1)
	go func() {
		ended <- w.tx(conn, func(tx *pgtx.Tx) error { return w.store.ChangeGeneration(t.Context(), tx, w.id, toTopic(gen)) })
	}()
	w.waits(conn, ended)
	if err := first.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; pgtx.Code(err) != pgtx.CodeChanged {
		t.Errorf("the one that waited: %v", err)
	}
	if err := w.change(toTopic(gen)); pgtx.Code(err) != pgtx.CodeChanged {
		t.Errorf("the one that came later: %v", err)
	}
}

// TestAnotherChangeOfTheSameNumber (V8): a widening is lost with the database, and
// the operator makes another change instead, which is the second generation again. A
// member that was configured for the first one must not take over.
func TestAnotherChangeOfTheSameNumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	widened := as(taking(0, 'a'), second)
	c := toTopic(gen)
	c.To = []byte("another key rule")
	if err := w.change(c); err != nil {
		t.Fatal(err)
	}
	if a := w.takeover(w.conn, "host", false, widened)[0]; a.Outcome != offsets.Generation {
		t.Errorf("%s", a.Outcome)
	}
	if err := w.change(toTopic(gen)); pgtx.Code(err) != pgtx.CodeChanged {
		t.Errorf("the widening again: %v", err)
	}
}

// TestChangeWaitsForACommit: a batch is between its fence and its COMMIT. What it
// applies belongs to the old generation, so the change comes behind it; in the order
// of every commit, with nothing in its hands while it waits for the first row.
func TestChangeWaitsForACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	claim := w.claim(0, 'a')
	var xact string
	tx, err := pgtx.Begin(t.Context(), w.conn, patient, w.store.Fence(w.id, []offsets.Advance{{Claim: claim, Generation: gen, To: 7}}, &xact))
	if err != nil {
		t.Fatal(err)
	}
	conn, ended := w.session(), make(chan error, 1)
	go func() {
		ended <- w.tx(conn, func(tx *pgtx.Tx) error { return w.store.ChangeGeneration(t.Context(), tx, w.id, toTopic(gen)) })
	}()
	w.waits(conn, ended)
	if a := w.takeover(w.session(), "host", false, taking(1, 'b'))[0]; a.Outcome != offsets.Taken {
		t.Errorf("the second position while the change waits for the first: %s", a.Outcome)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	w.want("behind the commit", "0 at 7 owner none epoch 1 by ", "1 at 100 owner none epoch 1 by ", "2 at 70 owner none epoch 0 by ",
		"3 at 80 owner none epoch 0 by ")
}

// TestChangeRefuses: what would leave partitions without positions, or nothing changed.
func TestChangeRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for name, spoil := range map[string]func(*offsets.Change){
		"the same generation": func(c *offsets.Change) { c.To = gen },
		"a start too few":     func(c *offsets.Change) { c.Starts = c.Starts[:1] },
		"fewer partitions":    func(c *offsets.Change) { c.Count, c.Starts = 1, nil },
	} {
		c := toTopic(gen)
		spoil(&c)
		if err := w.change(c); pgtx.Code(err) != "22023" {
			t.Errorf("%s: %v", name, err)
		}
	}
	w.want("refused", "0 at 0 owner none epoch 0 by ", "1 at 100 owner none epoch 0 by ")
}

func TestDecide(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	err := w.tx(w.conn, func(tx *pgtx.Tx) error {
		return w.store.Decide(t.Context(), tx, w.id, offsets.Decision{Topic: topic, Kind: "widen", Reason: "it grew", Detail: []byte(`{"keys": 7}`)})
	})
	if err != nil {
		t.Fatal(err)
	}
	var kind, reason string
	var keys int
	if err := w.Owner.QueryRow(t.Context(), "SELECT kind, reason, (detail ->> 'keys')::integer FROM "+w.Relation("decisions")+
		" WHERE topic_id = $1 AND partition IS NULL", [16]byte(topic)).Scan(&kind, &reason, &keys); err != nil {
		t.Fatal(err)
	}
	if kind != "widen" || reason != "it grew" || keys != 7 {
		t.Errorf("%s %q %d", kind, reason, keys)
	}
}
