package processor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// A partition goes while its view is being caught up, and comes back: two loaders on
// one view would both have it learn the same runs, and the slower one would take the
// filters out of a view that commits by then.
func TestAViewThatIsBeingLoadedIsNobodyElses(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(l *list, s *scope, v *dedup.View){
		"loaded":     func(l *list, s *scope, v *dedup.View) { l.loaded(s, v) },
		"not loaded": func(l *list, s *scope, _ *dedup.View) { l.notLoaded(s, time.Second) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newList(10, 1<<20, 1<<30)
			v := running(l, 1).scope.view
			l.drop(stream.UUID{1})
			l.open(claimOf(1, 0))
			first := l.takeLoad()
			if first.view != v {
				t.Fatal("the view was not kept")
			}
			l.drop(stream.UUID{1})
			l.open(claimOf(1, 0))
			if second := l.takeLoad(); second.view == v {
				t.Errorf("%s: two loaders have one view", name)
			}
			end(l, first, v)
			if l.reuse(claimOf(1, 0).Partition) != v {
				t.Errorf("%s: the view is lost", name)
			}
			if <-time.After(time.Minute); len(l.load) > 0 {
				t.Errorf("%s: loaded for a scope that went away", name)
			}
		})
	}
}

// The log is not there, and a partition comes while those under the scope are told:
// it is not told, so its view is asked for again. It would wait for ever, and look as
// if it ran.
func TestAScopeThatCannotBeLoadedIsTriedAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool, err := pgxpool.New(t.Context(), db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	l := newList(10, 1<<20, 1<<30)
	l.shared = map[string]bool{"w": true}
	p := &Processor{
		list: l, background: pool, log: dedup.New(db.Schema), settings: pgtx.DefaultSettings,
		group: rebalance.New(rebalance.Config{}, rebalance.Board{}), // knows of no claim: all came too late
	}
	l.open(stream.Claim{TopicName: "w", Owner: stream.UUID{1}})
	p.loadView(t.Context(), l.takeLoad())
	again := make(chan *scope, 1)
	go func() { again <- l.takeLoad() }()
	select {
	case s := <-again:
		if s == nil || s.queues != 1 {
			t.Errorf("another scope is loaded: %+v", s)
		}
	case <-time.After(10 * time.Second):
		t.Error("never tried again")
	}
	l.close()
}
