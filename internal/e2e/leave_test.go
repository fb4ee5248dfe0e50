package e2e

import (
	"math/rand/v2"
	"net/url"
	"syscall"
	"testing"
	"time"

	"effectonce/internal/cuttest"
	"effectonce/internal/pgproxytest"
)

// slowly has every transaction of the effects' table take at least this long.
func (w *world) slowly(seconds string) {
	w.t.Helper()
	w.db.Exec(w.t, `CREATE FUNCTION `+w.db.Relation("slowly")+`() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN PERFORM pg_catalog.pg_sleep(`+seconds+`); RETURN NULL; END $$`)
	w.db.Exec(w.t, `GRANT EXECUTE ON FUNCTION `+w.db.Relation("slowly")+` TO PUBLIC`)
	w.db.Exec(w.t, `CREATE TRIGGER slowly BEFORE INSERT ON `+w.effects+` FOR EACH STATEMENT EXECUTE FUNCTION `+w.db.Relation("slowly")+`()`)
}

// B14: batches take their time, and a second worker joins and leaves again and again:
// each batch in flight for a partition that moves commits before the new owner's
// takeover, or is read again by it.
func TestWorkInFlightWhileAMemberComesAndGoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6, 121)
	w.batch = 40
	w.slowly("0.2")
	w.start()
	b := w.member()
	for range 6 * seeds(t) {
		w.produce(1_000, func() {
			b.start()
			w.balanced()
			if code := b.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
		})
		w.exact("a member came and went", nil)
	}
	w.exact("drained", w.drained())
}

// B71: a member is told to end at any moment: under load, twice, while Postgres
// hangs, and exactly in COMMIT. It ends within its grace, and what was in flight is
// there once.
func TestAStopAtAnyMoment(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 122)
	way, direct := cuttest.Start(t, w.postgres()), w.member()
	dsn, err := url.Parse(w.db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.Host = way.Addr()
	cuttable := w.member()
	cuttable.set = []string{"postgres.dsn=" + dsn.String()}
	for _, m := range w.members {
		m.set = append(m.set, "shutdown_grace=3s")
	}
	rng := rand.New(rand.NewPCG(122, 0))
	soon := func() {
		at := w.progress() + rng.Int64N(1_500)
		w.await("the moment to stop", func() bool { return w.progress() >= at })
	}
	stops := func(m *member, codes ...int) {
		began := time.Now()
		if code := m.stop(); code != codes[0] && code != codes[len(codes)-1] {
			t.Errorf("exit code %d, want %v", code, codes)
		}
		if took := time.Since(began); took > 12*time.Second { // 3 s, on a machine as it may be
			t.Errorf("it took %s to end", took)
		}
	}
	for i := range 10 * seeds(t) {
		m := direct
		if i%5 == 3 {
			m = cuttable
		}
		w.produce(2_500, func() {
			m.start()
			switch i % 5 {
			case 2: // twice
				soon()
				m.ending = true
				m.signal(syscall.SIGTERM)
				_ = m.cmd.Process.Signal(syscall.SIGTERM) // gone meanwhile is as good
				m.gone()
			case 3: // while Postgres hangs
				soon()
				way.Cut()
				stops(m, 0, 1)
				way.Mend()
			case 4: // in COMMIT, whose answer does not come
				m.proxy.Arm(pgproxytest.HoldReply, pgproxytest.Filter{SQL: appendSQL, Nth: 1 + rng.IntN(4)})
				m.fired()
				stops(m, 0, 1)
				m.proxy.Release()
			default:
				soon()
				stops(m, 0)
			}
		})
		w.exact("stopped", nil)
	}
	direct.start()
	w.exact("drained", w.drained())
}

// B17: each answer of Postgres comes late and the log is large, so that loading it
// takes longer than the group waits for anybody. No callback waits for it: the group
// settles after each restart.
func TestTheGroupSettlesBeforeTheLogsAreLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 8, 123)
	w.memory = 2 // all keys but a few are sealed
	loader := w.start()
	w.produce(60_000, nil)
	w.exact("loaded", w.drained())
	if code := loader.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	way := cuttest.Start(t, w.postgres())
	way.Slow(50 * time.Millisecond)
	dsn, err := url.Parse(w.db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.Host = way.Addr()
	slow := []string{"postgres.dsn=" + dsn.String(), "kafka.rebalance_timeout=3s"}
	a, b := w.start(slow...), w.start(slow...)
	w.balanced()
	for _, m := range []*member{a, b} {
		w.produce(1_000, func() {
			if code := m.stop(); code != 0 {
				t.Errorf("exit code %d", code)
			}
			m.start()
			w.balanced()
		})
	}
	w.exact("drained", w.drained())
	for _, m := range []*member{a, b} {
		if n := m.events("group session failed, joining again"); n > 0 {
			t.Errorf("%s was expelled %d times", m.name, n)
		}
	}
}
