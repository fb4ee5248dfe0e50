package e2e

import (
	"context"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgproxytest"
)

// A member freezes while the server waits for its COPY data, and never resumes.
// No timeout of the server ends such a session, and it holds the position's row:
// the takeover must end it once its grace is over.
func TestZombieInMidCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 31)
	a := w.start()
	w.balanced()
	a.proxy.Arm(pgproxytest.HoldBehind, pgproxytest.Filter{SQL: "COPY "})
	w.produce(2_000, func() {
		a.fired()
		a.signal(syscall.SIGSTOP)
	})
	b := w.start()
	ends := w.drained()
	if !strings.Contains(b.output(), "ended_backend") {
		t.Error("the position came free without the zombie's backend being ended")
	}
	a.kill()
	w.exact("after the zombie", ends)
}

// Somebody's own session holds the position's row. It is named, and left alone.
func TestForeignSessionIsNeverEnded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 32)
	a := w.start()
	w.produce(300, nil)
	w.drained()
	if code := a.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	psql := w.connect("psql")
	tx, err := psql.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "SELECT FROM "+w.db.Relation("positions")+" FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	b := w.start()
	w.produce(300, nil)
	w.await("the session to be named", func() bool {
		ready := b.get("/readyz?verbose")
		return strings.Contains(ready, "waiting") && strings.Contains(ready, `"psql"`)
	})
	if _, err := tx.Exec(t.Context(), "SELECT 1"); err != nil {
		t.Errorf("the session was ended: %v", err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Errorf("the session was ended: %v", err)
	}
	w.exact("once the row is free", w.drained())
}

// connect opens a session of the owner's under this application name.
func (w *world) connect(application string) *pgx.Conn {
	w.t.Helper()
	config, err := pgx.ParseConfig(w.db.OwnerDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = application
	return w.open(config)
}

// open opens a session that ends with the test.
func (w *world) open(config *pgx.ConnConfig) *pgx.Conn {
	w.t.Helper()
	conn, err := pgx.ConnectConfig(w.t.Context(), config)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 5*time.Second)
		defer cancel()
		_ = conn.Close(ctx) // nothing is left to lose
	})
	return conn
}

// A member that is asked to end finishes what it has in flight and leaves the
// group: its successor goes on at once, long before a session would have run out,
// and nothing is done twice.
func TestGracefulStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 33)
	w.session = 2 * patience
	a, b := w.start(), w.start()
	w.balanced()
	w.produce(20_000, func() {
		w.await("the moment to stop", func() bool { return w.progress() >= 4_000 })
		if code := a.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
	})
	w.exact("after a graceful stop", w.drained())
	for _, outcome := range []string{"fenced", "log_moved", "unknown"} {
		if n := b.metric(`effectonce_commits_total{outcome="` + outcome + `"}`); n != 0 {
			t.Errorf("the successor had %v commits that came to %s", n, outcome)
		}
	}
	if strings.Contains(b.output(), "ended_backend") {
		t.Error("a backend was ended though its member left in order")
	}
}

// Without a business key the position alone makes a record's effect exact.
func TestCoordinatesOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 34)
	w.key = "coordinates"
	a, b := w.start(), w.start()
	for _, m := range []*member{a, b} {
		w.balanced()
		at := w.progress() + 2_000
		w.produce(10_000, func() {
			w.await("the moment to kill", func() bool { return w.progress() >= at })
			m.kill()
			m.start()
		})
		w.exact("after kill -9", nil)
		w.exact("drained", w.drained())
	}
}
