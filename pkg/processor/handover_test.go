package processor

import (
	"testing"
	"testing/synctest"
	"time"
)

// A queue whose partition the group took away goes on, alone, until it is empty; it
// takes no more records, and the next claim of the partition is not held up by it.
func TestAnOutgoingQueueGoesOn(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	q := running(l, 1)
	running(l, 2)
	l.offer(nameOf(1), recordsOf(0, 15))
	l.handOver(q.claim.Owner, time.Hour)
	l.offer(nameOf(1), recordsOf(15, 5))
	l.offer(nameOf(2), recordsOf(0, 1))
	for _, want := range []int{10, 5} {
		w := l.take()
		if len(w.parts) > 1 || w.parts[0].q != q {
			w.parts[0].to = 1
			l.committed(w.parts[0]) // the other's
			w = l.take()
		}
		if len(w.parts) != 1 || w.parts[0].q != q || count(w.parts[0]) != want {
			t.Fatalf("%d parts, %d records, want %d of the outgoing queue", len(w.parts), count(w.parts[0]), want)
		}
		if q.gone {
			t.Fatal("it was given up")
		}
		w.parts[0].to = q.claim.Next + int64(want)
		if l.committed(w.parts[0]) {
			t.Error("fetching would be resumed for who holds the partition now")
		}
	}
	if !q.gone || q.claim.Next != 15 || len(l.outgoing) != 0 || l.bytes > recordSize {
		t.Errorf("gone %t, at %d, %d outgoing, %d bytes", q.gone, q.claim.Next, len(l.outgoing), l.bytes)
	}
	l.handed(time.Hour) // does not wait
}

// It ends when it fails, when its own process claims the partition again, and when
// the time is up; it does not begin when it has nothing or is not running.
func TestAnOutgoingQueueEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for name, end := range map[string]func(l *list, q *queue){
			"failed":       func(l *list, _ *queue) { l.again(l.take().parts[0], time.Second) },
			"fenced":       func(l *list, _ *queue) { l.release(l.take().parts[0]) },
			"claimed anew": func(l *list, q *queue) { l.open(q.claim) },
			"in flight, and claimed anew": func(l *list, q *queue) {
				p := l.take().parts[0]
				l.open(q.claim)
				l.again(p, 0)
			},
			"its view is to be loaded": func(l *list, q *queue) {
				p := l.take().parts[0]
				l.dropView(q.scope)
				l.back(p)
			},
			"the process ends": func(l *list, _ *queue) { l.handed(time.Second) },
			"too late":         func(*list, *queue) { <-time.After(time.Minute) },
		} {
			l := newList(10, 1<<20, 1<<30)
			q := running(l, 1)
			l.offer(nameOf(1), recordsOf(0, 15))
			l.handOver(q.claim.Owner, time.Minute)
			l.mu.Lock() // a timer may be about to end it
			outgoing := !q.gone && len(l.outgoing) == 1 && l.byName[nameOf(1)] == nil
			l.mu.Unlock()
			if !outgoing {
				t.Fatalf("%s: it is dropped", name)
			}
			end(l, q)
			synctest.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			if !q.gone || len(l.outgoing) != 0 || len(l.ready) != 0 || l.bytes != 0 {
				t.Errorf("%s: gone %t, %d outgoing, %d ready, %d bytes", name, q.gone, len(l.outgoing), len(l.ready), l.bytes)
			}
		}
		l := newList(10, 1<<20, 1<<30)
		empty := running(l, 1)
		l.handOver(empty.claim.Owner, time.Minute)
		l.open(claimOf(2, 0))
		loading := l.byName[nameOf(2)]
		l.offer(nameOf(2), recordsOf(0, 1))
		l.handOver(loading.claim.Owner, time.Minute)
		if !empty.gone || !loading.gone || len(l.outgoing) != 0 || l.bytes != 0 {
			t.Error("what has nothing to go on with is kept")
		}
	})
}

// Before the mirror is written, what was in flight has landed, whatever came behind it.
func TestLanded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		running(l, 1)
		running(l, 2)
		l.offer(nameOf(1), recordsOf(0, 20))
		p := l.take().parts[0]
		landed := false
		go func() {
			l.landed(time.Hour)
			landed = true
		}()
		synctest.Wait()
		l.offer(nameOf(2), recordsOf(0, 10))
		l.take()
		synctest.Wait()
		if landed {
			t.Fatal("a part is in flight")
		}
		p.to = 10
		l.committed(p)
		l.take() // the next of the same partition
		synctest.Wait()
		if !landed {
			t.Fatal("it waits for what came later")
		}
		l.landed(time.Second) // the limit ends it
	})
}
