package pgtx_test

import (
	"context"
	"errors"
	"testing"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtx"
)

// stepOf is the step that an error names.
func stepOf(err error) pgtx.Step {
	if at, ok := errors.AsType[*pgtx.StepError](err); ok {
		return at.Step
	}
	return ""
}

func TestCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.insert(1))
	if err := tx.Run(t.Context(), w.insert(2), w.insert(3)); err != nil {
		t.Fatal(err)
	}
	w.effects() // nobody sees it before
	if err := tx.Commit(t.Context(), w.insert(4)); err != nil {
		t.Fatal(err)
	}
	w.effects(1, 2, 3, 4)
	w.idle()
	if err := pgtx.Once(t.Context(), w.conn, patient, w.insert(5)); err != nil {
		t.Fatal(err)
	}
	w.effects(1, 2, 3, 4, 5)
}

// TestCommitIsAnsweredWithRollback: a handler swallowed an error; the server
// answers COMMIT, but not with COMMIT. That is success to who only looks at errors.
func TestCommitIsAnsweredWithRollback(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.insert(1))
	if err := tx.Run(t.Context(), w.insert(1)); pgtx.Code(err) != "23505" { // and nobody looks at it
		t.Fatal(err)
	}
	err := tx.Commit(t.Context())
	if !errors.Is(err, pgtx.ErrNotCommitted) || errors.Is(err, pgtx.ErrCommitUnknown) || stepOf(err) != pgtx.StepCommit {
		t.Errorf("%v, want %v", err, pgtx.ErrNotCommitted)
	}
	w.effects()
	w.idle()
}

// TestErrorBeforeCommit: a statement raises while COMMIT is behind it in the same
// pipeline. Nothing is committed, and that is known.
func TestErrorBeforeCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	raise := pgtx.Statement{Step: pgtx.StepLog, SQL: "SELECT 1 / $1::integer", Params: []pgtx.Param{pgtx.Int4(0)}}
	for name, run := range map[string]func() error{
		"commit": func() error { return w.begin(w.insert(1)).Commit(t.Context(), w.insert(2), raise, w.insert(3)) },
		"once":   func() error { return pgtx.Once(t.Context(), w.conn, patient, w.insert(2), raise, w.insert(3)) },
		"first": func() error {
			return pgtx.Once(t.Context(), w.conn, patient, raise, w.insert(3))
		},
	} {
		err := run()
		if pgtx.Code(err) != "22012" || stepOf(err) != pgtx.StepLog || !pgtx.Answered(err) || errors.Is(err, pgtx.ErrCommitUnknown) {
			t.Errorf("%s: %v", name, err)
		}
		w.effects()
		w.idle()
	}
}

// TestErrorOfCommit: COMMIT itself fails (a deferred constraint): severity ERROR,
// so nothing is committed, and that is known.
func TestErrorOfCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "ALTER TABLE "+w.table+" DROP CONSTRAINT effects_pkey, ADD PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED")
	tx := w.begin(w.insert(1), w.insert(1))
	err := tx.Commit(t.Context())
	if pgtx.Code(err) != "23505" || stepOf(err) != pgtx.StepCommit || errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("%v", err)
	}
	w.effects()
	w.idle()
}

// TestRaiseSkipsTheRest: statement k raises; what stands before it is undone, what
// stands behind it never runs. A sequence remembers what ran even if rolled back.
func TestRaiseSkipsTheRest(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec(t, "CREATE SEQUENCE "+w.table[:len(w.table)-len(`"effects"`)]+`"ran"`)
	ran := w.table[:len(w.table)-len(`"effects"`)] + `"ran"`
	tick := pgtx.Statement{Step: pgtx.StepWrite, SQL: "SELECT pg_catalog.nextval('" + ran + "')"}
	raise := pgtx.Statement{Step: pgtx.StepFence, SQL: "SELECT 1 / $1::integer", Params: []pgtx.Param{pgtx.Int4(0)}}
	for k, stmts := range [][]pgtx.Statement{
		{raise, tick, tick}, {tick, raise, tick, tick, tick}, {tick, tick, raise, tick},
	} {
		w.Exec(t, "ALTER SEQUENCE "+ran+" RESTART")
		w.Exec(t, "SELECT setval('"+ran+"', 1, false)")
		tx := w.begin()
		if err := tx.Run(t.Context(), stmts...); stepOf(err) != pgtx.StepFence {
			t.Errorf("%d: %v", k, err)
		}
		tx.Rollback(t.Context())
		var next int
		if err := w.Owner.QueryRow(t.Context(), "SELECT nextval('"+ran+"')").Scan(&next); err != nil || next != k+1 {
			t.Errorf("%d statements ran, want %d (%v)", next-1, k, err)
		}
		w.idle()
	}
}

// TestUnknownCommit cuts the connection around COMMIT. The caller is told that
// nobody knows, and a second session knows the truth.
func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		fault pgproxytest.Fault
		truth []int64
	}{
		{"cut before COMMIT", pgproxytest.CutBeforeCommit, nil},
		{"cut behind COMMIT", pgproxytest.CutAfterCommit, []int64{1, 2}},
	} {
		for _, once := range []bool{false, true} {
			w, proxy := proxied(t)
			pid := w.conn.PgConn().PID()
			proxy.Arm(c.fault, pgproxytest.Filter{})
			var err error
			if once {
				err = pgtx.Once(t.Context(), w.conn, patient, w.insert(1), w.insert(2))
			} else {
				err = w.begin(w.insert(1)).Commit(t.Context(), w.insert(2))
			}
			if !errors.Is(err, pgtx.ErrCommitUnknown) || stepOf(err) != pgtx.StepCommit || pgtx.Answered(err) {
				t.Errorf("%s, once %v: %v", c.name, once, err)
			}
			if e := <-proxy.Fired(); e.Fault != c.fault {
				t.Errorf("%s: %v was injected", c.name, e.Fault)
			}
			w.closed()
			w.gone(pid)
			w.effects(c.truth...)
		}
	}
}

// TestCommitWithoutAnswer: the server has committed and its answer does not come;
// the caller's patience ends.
func TestCommitWithoutAnswer(t *testing.T) {
	t.Parallel()
	w, proxy := proxied(t)
	proxy.Arm(pgproxytest.HoldReply, pgproxytest.Filter{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	tx := w.begin(w.insert(1))
	ended := make(chan error, 1)
	go func() { ended <- tx.Commit(ctx) }()
	<-proxy.Fired()
	cancel()
	if err := <-ended; !errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("%v", err)
	}
	w.closed()
	w.effects(1)
}

// TestTerminated: the backend is ended while statements are in its pipeline, as a
// takeover does with a zombie. FATAL is no answer.
func TestTerminated(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	pid := w.conn.PgConn().PID()
	lock := w.Conn(t)
	blocker, err := pgtx.Begin(t.Context(), lock, patient, w.insert(2))
	if err != nil {
		t.Fatal(err)
	}
	tx := w.begin(w.insert(1))
	ended := make(chan error, 1)
	go func() { ended <- tx.Commit(t.Context(), w.insert(2), w.insert(3)) }() // waits for the other's key
	w.waits(pid)
	if _, err := w.Runtime.Exec(t.Context(), "SELECT pg_terminate_backend($1)", int32(pid)); err != nil {
		t.Fatal(err)
	}
	err = <-ended
	if !errors.Is(err, pgtx.ErrCommitUnknown) || pgtx.Answered(err) || pgtx.Code(err) != "57P01" {
		t.Errorf("%v", err)
	}
	blocker.Rollback(t.Context())
	w.closed()
	w.gone(pid)
	w.effects()
}

// waits returns once the backend waits for a lock.
func (w *world) waits(pid uint32) {
	w.t.Helper()
	for yes := false; !yes; {
		if err := w.Owner.QueryRow(w.t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(pid)).Scan(&yes); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestTerminatedBetween: the backend ended while nothing was asked of it.
func TestTerminatedBetween(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tx := w.begin(w.insert(1))
	pid := w.conn.PgConn().PID()
	if _, err := w.Runtime.Exec(t.Context(), "SELECT pg_terminate_backend($1)", int32(pid)); err != nil {
		t.Fatal(err)
	}
	w.gone(pid)
	if err := tx.Commit(t.Context(), w.insert(2)); !errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("%v", err)
	}
	w.closed()
	w.effects()
	if _, err := pgtx.Begin(t.Context(), w.conn, patient); err == nil || errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("begin on a dead session: %v", err)
	}
	tx.Rollback(t.Context()) // of no use and no harm
}
