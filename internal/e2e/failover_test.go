package e2e

import (
	"testing"

	"effectonce/internal/pgtest"
)

// B25, and the database goes back for good: an asynchronous replica that lags is promoted
// while the primary dies of kill -9. Members have both hosts in their DSN. Positions,
// logs and memory follow what the replica has; what it never got is read again, also by
// partitions that nothing is written to any more.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, scope string
		memory      int
		load        int // records that are written during the failover
	}{
		{"scope partition, idle", "partition", 0, 0},
		{"scope topic, under load", "topic", 2, 10_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t)
			w := newWorldIn(t, pgtest.NewOn(t, p.primary.EitherDSN(p.replica)), 4, 95)
			w.direct, w.memory = true, c.memory
			w.scatter(c.scope)
			w.failover(p, c.load)
		})
	}
}

func (w *world) failover(p *pair, load int) {
	t := w.t
	t.Helper()
	a, b := w.start(), w.start()
	w.balanced()
	w.produce(5_000, nil)
	w.drained()
	p.lag(t)
	w.produce(3_000, nil)
	w.exact("before", w.drained())

	at := w.progress() + int64(load)/4
	w.produce(load, func() {
		w.await("the moment to fail over", func() bool { return w.progress() >= at })
		p.primary.Kill(t)
		p.replica.Promote(t)
		w.db.Owner.Reset()
		w.db.Runtime.Reset()
	})
	w.exact("promoted", nil)
	w.exact("read again", w.drained())
	if a.metric("effectonce_differences_total")+b.metric("effectonce_differences_total") == 0 && load == 0 {
		t.Error("no member noticed")
	}
	w.produce(2_000, nil)
	w.exact("afterwards", w.drained())
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("dead_letters")); n != 0 {
		t.Errorf("%d dead letters", n)
	}
}

// pair is a primary with an asynchronous replica.
type pair struct{ primary, replica *pgtest.Private }

func newPair(t *testing.T) *pair {
	t.Helper()
	primary := pgtest.StartPrivate(t)
	return &pair{primary, primary.Replica(t)}
}

// lag has the replica stand still once it has everything there is.
func (p *pair) lag(t *testing.T) {
	t.Helper()
	p.primary.Await(t, "the replica to catch up", "SELECT replay_lsn >= pg_current_wal_lsn() FROM pg_stat_replication")
	p.replica.HoldBack(t)
}
