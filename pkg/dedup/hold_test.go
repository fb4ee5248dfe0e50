package dedup

import (
	"context"
	"errors"
	"testing"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// newTopicWorld is a world whose topic has one log, of scope topic.
func newTopicWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t, 0)
	w.store.sizes = tiny
	for range 2 { // the second finds the first's
		tx := w.begin()
		if err := w.store.CreateTopic(t.Context(), tx, w.id, w.topic, gen); err != nil {
			t.Fatal(err)
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func (w *world) begin() *pgtx.Tx {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), w.conn, patient)
	if err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// hold asks for the runs in between and ends the transaction.
func (w *world) hold(v *View) error {
	w.t.Helper()
	tx := w.begin()
	defer tx.Rollback(w.t.Context())
	return w.store.Hold(w.t.Context(), tx, v)
}

// TestScopes: the logs of a topic and of its partitions are told apart.
func TestScopes(t *testing.T) {
	t.Parallel()
	w := newTopicWorld(t)
	w.create(0, 1)
	w.write(w.load(WholeTopic), 'a', 1)
	w.write(w.load(0), 'a', 2)
	w.knows(w.load(WholeTopic), 5, map[int]bool{1: true})
	w.knows(w.load(0), 5, map[int]bool{2: true})
	list, err := w.store.Standings(t.Context(), w.conn, patient, w.id)
	if err != nil || len(list) != 2 || list[0].Partition != w.part(0) || list[1].Partition != w.part(WholeTopic) {
		t.Errorf("%+v, %v", list, err)
	}
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET state = 'closed' WHERE partition IS NULL")
	if _, err := w.store.Load(t.Context(), w.conn, patient, w.id, w.part(WholeTopic), nil); !errors.Is(err, ErrLogClosed) {
		t.Errorf("a closed log: %v", err)
	}
}

// TestHoldLearns: whatever the number of runs in between is beside the page, a view
// that holds its log is the writer's, and the commit on top of it is accepted.
func TestHoldLearns(t *testing.T) {
	t.Parallel()
	for _, runs := range []int{0, 1, page - 1, page, page + 1, 2*page + 3} {
		for _, from := range []int{0, 1} {
			w := newTopicWorld(t)
			writer := w.load(WholeTopic)
			for range from {
				w.write(writer, 'a', 9999)
			}
			v := w.load(WholeTopic)
			for i := range runs {
				w.write(writer, 'a', i)
			}
			if err := w.hold(v); err != nil {
				t.Errorf("%d runs from %d: %v", runs, from, err)
			}
			if diff := same(writer, v); diff != "" {
				t.Errorf("%d runs from %d: %s", runs, from, diff)
			}
			if err := w.append(t.Context(), w.conn, newRun(v, 'z', 77777)); err != nil {
				t.Errorf("%d runs from %d: append: %v", runs, from, err)
			}
		}
	}
}

// TestHoldWaits: the log is locked by a member that is committing a run. Who waits for
// it must see that run: read in the statement that waits, the runs are those of before.
func TestHoldWaits(t *testing.T) {
	t.Parallel()
	w := newTopicWorld(t)
	v, o := w.load(WholeTopic), w.load(WholeTopic)
	holder := w.Conn(t)
	r := newRun(o, 'b', 4)
	var xact string
	other, err := pgtx.Begin(t.Context(), holder, patient, pgtx.Statement{
		SQL: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(t.Context(), w.store.Append(xact, []Run{r})); err != nil {
		t.Fatal(err)
	}
	var f Fold
	f.Reset(0)
	f.Add(fpOf(4))
	f.Add(fpOf(5))
	f.Check(v)
	tx := w.begin()
	pid := w.conn.PgConn().PID()
	held := make(chan error, 1)
	before := false
	go func() {
		held <- w.store.Hold(t.Context(), tx, v, pgtx.Statement{
			Step: pgtx.StepEffect, SQL: "SELECT true", Row: func(r pgtx.Row) error { return r.Scan(&before) },
		})
	}()
	w.blocked(pid)
	if err := other.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-held; err != nil || !before {
		t.Fatalf("%v, before ran: %v", err, before)
	}
	if v.HeadID != r.ID || !f.Overtaken(func(i int) bool { return i == 0 }) || f.Overtaken(func(i int) bool { return i == 1 }) {
		t.Errorf("head %s, overtaken %v and %v", v.HeadID, f.Overtaken(func(i int) bool { return i == 0 }), f.Overtaken(func(i int) bool { return i == 1 }))
	}
	// Nobody appends before this transaction ends.
	o.Learn(r.ID, r.Fingerprints)
	ended := make(chan error, 1)
	go func() { ended <- w.append(t.Context(), holder, newRun(o, 'c', 6)) }()
	w.blocked(holder.PgConn().PID())
	tx.Rollback(t.Context())
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w.exact(w.load(WholeTopic))
}

// blocked returns when a session waits for a lock.
func (w *world) blocked(pid uint32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for waits := false; !waits; {
		if err := w.Owner.QueryRow(ctx, "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(pid)).Scan(&waits); err != nil {
			w.t.Fatalf("waiting for session %d to wait: %v", pid, err)
		}
	}
}

// TestHoldRefuses: what does not prove the runs in between, as TestRunsInBetween has
// it for catching up.
func TestHoldRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		story func(w *world, v *View) // v is at run 3
		drop  bool
		code  string
	}{
		{"nothing happened", func(*world, *View) {}, false, ""},
		{"sealed up to the view's head by somebody else", func(w *world, _ *View) { w.seal(w.load(WholeTopic)) }, false, ""},
		{"the head's run is another now", func(w *world, v *View) {
			back := w.backup()
			w.write(v, 'a', 40)
			back()
			w.write(w.load(WholeTopic), 'b', 41)
		}, true, ""},
		{"the head's run is another, and the log went on", func(w *world, v *View) {
			back := w.backup()
			w.write(v, 'a', 40)
			back()
			w.write(w.load(WholeTopic), 'b', 41)
			w.write(w.load(WholeTopic), 'b', 42)
		}, true, ""},
		{"the log is behind the view", func(w *world, v *View) {
			back := w.backup()
			w.write(v, 'a', 40)
			back()
		}, true, ""},
		{"a run has no fingerprints any more", func(w *world, _ *View) {
			w.write(w.load(WholeTopic), 'b', 50)
			w.damage("UPDATE " + w.Relation("runs") + " SET fingerprints = NULL WHERE seq = 4")
		}, true, ""},
		{"sealed beyond the view's head", func(w *world, _ *View) {
			o := w.load(WholeTopic)
			w.write(o, 'b', 50)
			w.seal(o)
		}, true, ""},
		{"a run is missing", func(w *world, _ *View) {
			for n := range 3 {
				w.write(w.load(WholeTopic), 'b', 50+n)
			}
			w.damage("DELETE FROM " + w.Relation("runs") + " WHERE seq = 5")
		}, true, ""},
		{"the last run is not the log's head", func(w *world, _ *View) {
			w.write(w.load(WholeTopic), 'b', 50)
			w.damage("UPDATE " + w.Relation("runs") + " SET run_id = gen_random_uuid() WHERE seq = 4")
		}, true, ""},
		{"an empty log of another name", func(w *world, v *View) {
			w.damage("DELETE FROM " + w.Relation("runs"))
			w.damage("UPDATE " + w.Relation("logs") + " SET head = 0")
			*v = *newView(v.Log, v.Generation)
			v.HeadID = stream.UUID{1}
		}, true, ""},
		{"closed", func(w *world, _ *View) {
			w.damage("UPDATE " + w.Relation("logs") + " SET state = 'closed'")
		}, false, pgtx.CodeLogClosed},
		{"of another generation", func(w *world, _ *View) {
			w.damage("UPDATE " + w.Relation("logs") + " SET generation = 'other'")
		}, false, pgtx.CodeLogClosed},
	} {
		w := newTopicWorld(t)
		v := w.load(WholeTopic)
		for n := range 3 {
			w.write(v, 'a', n)
		}
		c.story(w, v)
		for name, ask := range map[string]func(*pgtx.Tx) error{
			"follow": func(tx *pgtx.Tx) error { return w.store.Follow(t.Context(), tx, v) },
			"hold":   func(tx *pgtx.Tx) error { return w.store.Hold(t.Context(), tx, v) },
		} {
			tx := w.begin()
			err := ask(tx)
			tx.Rollback(t.Context())
			if errors.Is(err, ErrDropView) != c.drop || pgtx.Code(err) != c.code || (err == nil) != (!c.drop && c.code == "") {
				t.Errorf("%s: %s: %v", c.name, name, err)
			}
		}
	}
}

// TestOvertakenBehindASeal: the key was learned since the check, and the view's own
// seal has taken it out of the exact set before anybody asked.
func TestOvertakenBehindASeal(t *testing.T) {
	t.Parallel()
	w := newTopicWorld(t)
	v := w.load(WholeTopic)
	w.write(v, 'a', 1)
	var f Fold
	f.Reset(7)
	f.AddKeyless()
	f.Add(fpOf(4))
	f.Check(v)
	w.write(w.load(WholeTopic), 'b', 4)
	tx := w.begin()
	if err := w.store.Follow(t.Context(), tx, v); err != nil {
		t.Fatal(err)
	}
	tx.Rollback(t.Context())
	w.seal(v)
	if !f.Overtaken(func(int) bool { return true }) {
		t.Error("key 4 is new")
	}
	if f.Overtaken(func(i int) bool { return i == 7 }) {
		t.Error("nothing repeats a record without a key")
	}
}
