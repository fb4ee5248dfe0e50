package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtest"
)

// B47: eight committers share two sessions of the server with each other and with a
// neighbour who leaves every setting in disorder, and PgBouncer is killed in the middle.
// Nothing is prepared by name, nothing relies on what a session was told before.
func TestTransactionPooler(t *testing.T) {
	t.Parallel()
	prepares := map[string][]string{"as it comes": nil}
	if pgtest.BouncerPrepares(t) {
		prepares = map[string][]string{"prepares nothing": {"max_prepared_statements = 0"}, "prepares": {"max_prepared_statements = 100"}}
	}
	for name, settings := range prepares {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 8, 91)
			w.committers, w.batch = 8, 100
			b := pgtest.StartBouncer(t, w.postgres(), 2, settings...)
			w.upstream = b.Addr()
			w.pooled(b)
		})
	}
}

func (w *world) pooled(b *pgtest.Bouncer) {
	t := w.t
	t.Helper()
	m := w.start()
	w.balanced()
	at := w.progress() + 6_000
	w.produce(20_000, func() {
		w.disorder(b)
		w.await("the moment to restart PgBouncer", func() bool { return w.progress() >= at })
		b.Kill(t)
		b.Start(t)
		w.disorder(b)
	})
	w.exact("behind a pooler", w.drained())
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("dead_letters")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
	for _, code := range []string{"26000", "42P05", "25P02", "25006", "unsupported startup parameter"} {
		if strings.Contains(m.output(), code) {
			t.Errorf("the member met %s", code)
		}
	}
}

// disorder leaves settings in the server's sessions as a careless program does.
func (w *world) disorder(b *pgtest.Bouncer) {
	w.t.Helper()
	conn := w.through(b)
	for range 20 { // whichever sessions these are
		if _, err := conn.Exec(w.t.Context(), `SET search_path = nowhere; SET default_transaction_read_only = on;
			SET default_transaction_isolation = 'serializable'; SET TimeZone = 'Asia/Kathmandu'; SET DateStyle = 'German';
			SET lock_timeout = 1; SET idle_in_transaction_session_timeout = 1; SET bytea_output = 'escape'; SET IntervalStyle = 'sql_standard'`,
			pgx.QueryExecModeSimpleProtocol); err != nil {
			w.t.Fatal(err)
		}
	}
}

// through opens a session of the runtime role by way of PgBouncer.
func (w *world) through(b *pgtest.Bouncer) *pgx.Conn {
	w.t.Helper()
	config, err := pgx.ParseConfig(w.db.RuntimeDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := fmt.Sscanf(strings.Replace(b.Addr(), ":", " ", 1), "%s %d", &config.Host, &config.Port); err != nil {
		w.t.Fatal(err)
	}
	return w.open(config)
}

// B47: a member freezes in mid-COPY behind a pooler. Its backend is found by the pid that
// the server gives, since the one in the protocol is the pooler's, and by its
// application_name, which PgBouncer hands on with each transaction.
func TestZombieBehindAPooler(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 92)
	b := pgtest.StartBouncer(t, w.postgres(), 6)
	w.upstream = b.Addr()
	first := w.start()
	w.balanced()
	first.proxy.Arm(pgproxytest.HoldBehind, pgproxytest.Filter{SQL: "COPY "})
	w.produce(2_000, func() {
		first.fired()
		first.signal(syscall.SIGSTOP)
	})
	second := w.start()
	ends := w.drained()
	if !strings.Contains(second.output(), "ended_backend") {
		t.Error("the position came free without the zombie's backend being ended")
	}
	first.kill()
	w.exact("after the zombie", ends)
}
