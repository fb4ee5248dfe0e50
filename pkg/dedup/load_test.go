package dedup

import (
	"testing"
	"time"
)

// The database goes back while a view is loaded: the log's row was read before, its
// runs are read behind. What was read is torn and says nothing about the log, but the
// partition was stopped as if its runs had been deleted by hand.
func TestLoadWhileTheDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	w.write(v, 'a', 1)
	w.write(v, 'a', 2)
	want := w.load(0)
	w.write(v, 'a', 3)

	ctx := t.Context()
	tx, err := w.Owner.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("LOCK " + w.Relation("runs"))
	type answer struct {
		view *View
		err  error
	}
	loaded := make(chan answer, 1)
	conn := w.Conn(t)
	pid := int32(conn.PgConn().PID())
	go func() {
		view, err := w.store.Load(ctx, conn, patient, w.id, w.part(0), nil)
		loaded <- answer{view, err}
	}()
	for waits := false; !waits; time.Sleep(5 * time.Millisecond) { //nolint:forbidigo // nothing tells when a session waits
		if err := w.Owner.QueryRow(ctx, "SELECT cardinality(pg_blocking_pids($1)) > 0", pid).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	exec("DELETE FROM " + w.Relation("runs") + " WHERE seq = 3")
	exec("UPDATE " + w.Relation("logs") + " SET head = 2, head_id = (SELECT run_id FROM " + w.Relation("runs") + " WHERE seq = 2)")
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	got := <-loaded
	if got.err != nil {
		t.Fatal(got.err)
	}
	if diff := same(want, got.view); diff != "" {
		t.Errorf("the view (-want +got):\n%s", diff)
	}
}
