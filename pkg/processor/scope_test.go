package processor

import (
	"testing"
	"testing/synctest"
	"time"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// wholeTopic opens claims of a topic in scope topic and gives them their one view.
func wholeTopic(l *list, partitions byte) *scope {
	l.shared = map[string]bool{"w": true}
	for n := range partitions {
		l.open(stream.Claim{TopicName: "w", Partition: stream.Partition{Number: int32(n)}, Owner: stream.UUID{100 + n}})
	}
	s := l.takeLoad()
	l.loaded(s, &dedup.View{})
	return s
}

func wholeName(n int32) rebalance.Name { return rebalance.Name{Topic: "w", Number: n} }

// In scope topic the partitions share a log: one transaction carries all that are
// ready, nothing else is in it, and no second one begins beside it.
func TestAScopeIsInOneTransactionAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(100, 1<<20, 1<<30)
		running(l, 1)
		s := wholeTopic(l, 3)
		l.offer(wholeName(0), recordsOf(0, 10))
		l.offer(nameOf(1), recordsOf(0, 10))
		l.offer(wholeName(1), recordsOf(0, 10))
		w := l.take()
		if len(w.parts) != 2 || len(w.logs) != 1 || w.shared() == nil || w.logs[0].scope != s {
			t.Fatalf("%d parts of %d logs", len(w.parts), len(w.logs))
		}
		l.offer(wholeName(2), recordsOf(0, 10))
		if other := l.take(); len(other.parts) != 1 || other.shared() != nil {
			t.Fatal("the other topic's partition is not taken alone")
		}
		got := make(chan *work, 1)
		go func() { got <- l.take() }()
		synctest.Wait()
		if len(got) != 0 {
			t.Fatal("two transactions of one log")
		}
		for i, p := range w.parts {
			p.to = 10
			l.committed(p)
			synctest.Wait()
			if done := i+1 == len(w.parts); len(got) == 1 != done {
				t.Errorf("with %d of its parts landed: taken %v", i+1, len(got) == 1)
			}
		}
		l.close()
	})
}

// The view goes when the last partition of the scope goes, and not before.
func TestAScopeOutlivesItsPartitions(t *testing.T) {
	t.Parallel()
	l := newList(100, 1<<20, 1<<30)
	s := wholeTopic(l, 2)
	l.drop(stream.UUID{100})
	if s.closed || len(l.kept) > 0 {
		t.Fatal("closed with a partition left")
	}
	l.open(stream.Claim{TopicName: "w", Partition: stream.Partition{Number: 0}, Owner: stream.UUID{7}})
	l.offer(wholeName(0), recordsOf(0, 1))
	if w := l.take(); w.logs[0].scope != s || !s.stale {
		t.Error("a partition that comes back does not share the view, caught up")
	}
	l.drop(stream.UUID{7})
	l.drop(stream.UUID{101})
	if s.closed {
		t.Error("closed with a part in flight")
	}
}

// What others append to a shared log is learned while nothing else is to be done.
func TestASharedViewAtRestIsCaughtUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(100, 1<<20, 1<<30)
		s := wholeTopic(l, 1)
		v := s.view
		l.suspectLog(s)
		l.suspectLog(s)
		l.offer(wholeName(0), recordsOf(0, 1))
		got := make(chan *work, 1)
		go func() { got <- l.take() }()
		synctest.Wait()
		if len(got) != 0 || len(l.load) != 1 {
			t.Fatalf("taken %v while its view is caught up, %d times", len(got) == 1, len(l.load))
		}
		l.loaded(l.takeLoad(), v)
		synctest.Wait()
		if w := <-got; w.logs[0].scope.stale {
			t.Error("still in doubt")
		}
	})
}

// With a linger a batch waits for more, but not when it is full.
func TestLinger(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		l.linger = time.Second
		running(l, 1)
		start := time.Now()
		l.offer(nameOf(1), recordsOf(0, 3))
		time.AfterFunc(700*time.Millisecond, func() { l.offer(nameOf(1), recordsOf(3, 3)) })
		w := l.take()
		if time.Since(start) != time.Second || count(w.parts[0]) != 6 {
			t.Fatalf("after %s: %d records", time.Since(start), count(w.parts[0]))
		}
		l.offer(nameOf(1), recordsOf(6, 12))
		w.parts[0].to = 6
		l.committed(w.parts[0])
		w = l.take()
		if time.Since(start) != time.Second || count(w.parts[0]) != 10 {
			t.Errorf("a full batch after %s: %d records", time.Since(start), count(w.parts[0]))
		}
		w.parts[0].to = 16
		l.committed(w.parts[0])
		if w = l.take(); time.Since(start) != 2*time.Second || count(w.parts[0]) != 2 {
			t.Errorf("what it left after %s: %d records", time.Since(start), count(w.parts[0]))
		}
	})
}

// A wait that a full batch ended does not end the next one.
func TestLingerBeginsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		l.linger = time.Second
		running(l, 1)
		start := time.Now()
		l.offer(nameOf(1), recordsOf(0, 3))
		<-time.After(500 * time.Millisecond)
		l.offer(nameOf(1), recordsOf(3, 7))
		w := l.take()
		w.parts[0].to = 10
		l.committed(w.parts[0])
		l.offer(nameOf(1), recordsOf(10, 1))
		if l.take(); time.Since(start) != 1500*time.Millisecond {
			t.Errorf("lingered until %s", time.Since(start))
		}
	})
}
