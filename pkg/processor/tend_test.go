package processor

import (
	"testing"
	"testing/synctest"
	"time"

	"effectonce/pkg/dedup"
	"effectonce/pkg/stream"
)

// tendingOf opens a claim with a view that is being worked on.
func tendingOf(t *testing.T, l *list, owner byte) (tending, func() bool) {
	t.Helper()
	l.memory = 1
	running(l, owner)
	work, _, life, ok := l.takeTend(t.Context())
	if !ok {
		t.Fatal("nothing to tend")
	}
	return work, func() bool { return life.Err() != nil }
}

// A view that could not be tended waits, however often its queue commits meanwhile.
func TestAViewThatFailedWaitsBeforeItIsTendedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		work, _ := tendingOf(t, l, 1)
		l.tended(work, time.Hour)
		l.mu.Lock()
		l.tendTo(work.scope) // as a commit does whose view has keys to seal
		l.mu.Unlock()
		if len(l.tend) != 0 {
			t.Error("tended again at once")
		}
		<-time.After(time.Hour)
		synctest.Wait()
		if len(l.tend) != 1 {
			t.Error("never tended again")
		}
	})
}

// A keeper finds that somebody else changed the log while the queue is in flight: it
// is caught up before the batch that follows.
func TestADoubtThatComesInFlightIsKept(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	q := running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 20))
	p := l.take().parts[0]
	l.suspectLog(q.scope)
	p.to = 10
	l.committed(p)
	if p = l.take().parts[0]; !q.scope.stale {
		t.Error("the doubt is forgotten")
	}
	q.scope.stale = false // caught up
	p.to = 20
	l.committed(p)
	l.offer(nameOf(1), recordsOf(20, 1))
	if l.take(); q.scope.stale {
		t.Error("the doubt is never settled")
	}
}

// The work on a view that is dropped ends with it: its swaps would make the new one
// somebody else's.
func TestWorkOnADroppedViewEnds(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	work, ended := tendingOf(t, l, 1)
	l.offer(nameOf(1), recordsOf(0, 3))
	p := l.take().parts[0]
	l.dropView(p.q.scope)
	l.back(p)
	if !ended() {
		t.Error("the dropped view is still worked on")
	}
	l.loaded(l.takeLoad(), &dedup.View{})
	l.tended(work, 0)
	if len(l.tend) != 1 {
		t.Error("the new view is not tended")
	}
}

// A cold queue that is dropped in flight gives its place to another when it lands.
func TestADroppedColdQueueLeavesRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		for o := byte(1); o <= 2; o++ {
			running(l, o).scope.cold = true
			l.offer(nameOf(o), recordsOf(0, 1))
		}
		w := l.take()
		got := make(chan *work, 1)
		go func() { got <- l.take() }()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("more than half of the committers work for cold queues")
		}
		l.drop(stream.UUID{1})
		l.again(w.parts[0], 0)
		synctest.Wait()
		if len(got) != 1 {
			t.Error("waits for the dropped queue's part")
			l.close()
		}
	})
}

// The view of a partition that went away is all its keys: it is kept for as long as
// is said and no longer, one with a batch in flight from when that has landed.
func TestAViewIsKeptForAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		went := func() stream.Partition {
			q := running(l, 1)
			l.drop(q.claim.Owner)
			return q.claim.Partition
		}
		for range 2 {
			if l.reuse(went()) == nil {
				t.Error("not kept")
			}
		}
		p := went()
		<-time.After(keptFor - time.Second)
		l.mu.Lock()
		if len(l.kept) != 1 {
			t.Error("dropped early")
		}
		l.mu.Unlock()
		<-time.After(2 * time.Second)
		if synctest.Wait(); l.reuse(p) != nil {
			t.Error("kept for longer")
		}
		running(l, 1)
		l.offer(nameOf(1), recordsOf(0, 1))
		w := l.take()
		l.drop(stream.UUID{1})
		if l.reuse(p) != nil {
			t.Error("kept with a batch in flight")
		}
		l.committed(w.parts[0])
		if l.reuse(p) == nil {
			t.Error("not kept behind the batch")
		}
	})
}

// A filter on its way outlives the view it was begun for, which is loaded again when
// other members seal; it ends with the scope.
func TestAFilterOutlivesItsView(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	l.memory = 1
	running(l, 1)
	w, life, work, _ := l.takeTend(t.Context())
	l.offer(nameOf(1), recordsOf(0, 3))
	p := l.take().parts[0]
	l.dropView(p.q.scope)
	l.back(p)
	if life.Err() != nil || work.Err() == nil {
		t.Errorf("loaded again: the filter %v, everything else %v", life.Err(), work.Err())
	}
	l.drop(stream.UUID{1})
	if life.Err() == nil {
		t.Error("the filter outlives the scope")
	}
	l.tended(w, 0)
}
