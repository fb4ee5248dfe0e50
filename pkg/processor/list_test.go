package processor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

func claimOf(owner byte, next int64) stream.Claim {
	return stream.Claim{TopicName: "t", Partition: stream.Partition{Number: int32(owner)}, Owner: stream.UUID{owner}, Next: next}
}

func rowOf(owner byte, next int64) offsets.Row {
	return offsets.Row{Owner: stream.UUID{owner}, Next: next}
}

func nameOf(owner byte) rebalance.Name { return rebalance.Name{Topic: "t", Number: int32(owner)} }

// recordsOf are n records from an offset on, with 100 bytes each.
func recordsOf(from int64, n int) []*kgo.Record {
	recs := make([]*kgo.Record, n)
	for i := range recs {
		recs[i] = &kgo.Record{Offset: from + int64(i), Value: make([]byte, 100)}
	}
	return recs
}

const recordSize = 100 + overhead

// running opens a claim and gives it a view.
func running(l *list, owner byte) *queue {
	l.open(claimOf(owner, 0))
	l.loaded(l.takeLoad(), &dedup.View{})
	return l.byName[nameOf(owner)]
}

func TestTakeCombinesSmallAndCutsBig(t *testing.T) {
	t.Parallel()
	l := newList(100, 1<<20, 1<<30)
	running(l, 1)
	running(l, 2)
	l.offer(nameOf(1), recordsOf(0, 30))
	l.offer(nameOf(2), recordsOf(0, 150))
	w := l.take()
	if len(w.parts) != 2 || count(w.parts[0]) != 30 || count(w.parts[1]) != 70 {
		t.Fatalf("first transaction: %d parts", len(w.parts))
	}
	// What was cut stays in order, and waits while its partition is in flight.
	l.offer(nameOf(1), recordsOf(30, 5))
	for _, p := range w.parts {
		p.to = int64(count(p))
		l.committed(p)
	}
	w = l.take()
	if len(w.parts) != 2 || first(w.parts[0]) != 30 || first(w.parts[1]) != 70 || count(w.parts[1]) != 80 {
		t.Fatalf("second transaction: %d parts", len(w.parts))
	}
}

func TestFailedPartitionsRunAlone(t *testing.T) {
	t.Parallel()
	l := newList(100, 1<<20, 1<<30)
	for o := byte(1); o <= 3; o++ {
		running(l, o)
		l.offer(nameOf(o), recordsOf(0, 10))
	}
	w := l.take()
	for _, p := range w.parts[:2] {
		l.again(p, 0)
	}
	l.committed(w.parts[2])
	l.offer(nameOf(3), recordsOf(10, 10))
	seen := map[int32]int{}
	for range 3 {
		w := l.take()
		seen[w.parts[0].q.name.Number] = len(w.parts)
		p := w.parts[0]
		p.to = 10
		l.committed(p)
	}
	for n := int32(1); n <= 3; n++ {
		if seen[n] != 1 {
			t.Errorf("partition %d was in a transaction of %d parts", n, seen[n])
		}
	}
}

func TestBytesAreFreedHoweverAPartEnds(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(l *list, w *work){
		"committed":            func(l *list, w *work) { l.committed(w.parts[0]) },
		"dropped in flight":    func(l *list, w *work) { l.drop(stream.UUID{1}); l.release(w.parts[0]) },
		"dropped, committed":   func(l *list, w *work) { l.drop(stream.UUID{1}); l.committed(w.parts[0]) },
		"dropped, put back":    func(l *list, w *work) { l.drop(stream.UUID{1}); l.again(w.parts[0], time.Hour) },
		"replaced, committed":  func(l *list, w *work) { l.open(claimOf(1, 9)); l.committed(w.parts[0]) },
		"put back, dropped":    func(l *list, w *work) { l.again(w.parts[0], 0); l.drop(stream.UUID{1}) },
		"resting, dropped":     func(l *list, w *work) { l.again(w.parts[0], time.Hour); l.drop(stream.UUID{1}) },
		"reloaded and dropped": func(l *list, w *work) { l.dropView(w.logs[0].scope); l.back(w.parts[0]); l.drop(stream.UUID{1}) },
		"dropped and reloaded": func(l *list, w *work) { l.drop(stream.UUID{1}); l.dropView(w.logs[0].scope); l.back(w.parts[0]) },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newList(10, 1<<20, 1<<30)
			running(l, 1)
			l.offer(nameOf(1), recordsOf(0, 10))
			if l.bytes != 10*recordSize {
				t.Fatalf("%d bytes in flight", l.bytes)
			}
			end(l, l.take())
			if l.bytes != 0 {
				t.Errorf("%s: %d bytes are still in flight", name, l.bytes)
			}
		})
	}
}

func TestQueueBelongsToOneClaim(t *testing.T) {
	t.Parallel()
	l := newList(100, 1<<20, 1<<30)
	running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 10))
	w := l.take()
	l.offer(nameOf(1), recordsOf(10, 10))
	second := claimOf(1, 10)
	second.Owner = stream.UUID{9}
	l.open(second) // taken over again while the old claim's transaction is in flight
	q := l.byName[nameOf(1)]
	w.parts[0].to = 10
	l.committed(w.parts[0])
	if len(q.recs) != 0 || q.claim.Next != 10 || len(l.ready) != 0 {
		t.Error("records or the position of the old claim reached the new one")
	}
	l.offer(nameOf(1), recordsOf(10, 1))
	got := l.take()
	if got.parts[0].q != q || first(got.parts[0]) != 10 {
		t.Error("the new claim does not get its own records")
	}
	if !got.logs[0].scope.stale {
		t.Error("the view is not caught up under the new claim")
	}
}

func TestFullQueueIsPausedAndResumed(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 40*recordSize) // a quarter is ten records
	running(l, 1)
	if l.offer(nameOf(1), recordsOf(0, 10)) {
		t.Error("paused at a quarter of the bound")
	}
	if !l.offer(nameOf(1), recordsOf(10, 1)) {
		t.Error("not paused over a quarter of the bound")
	}
	if l.offer(nameOf(1), recordsOf(11, 1)) {
		t.Error("paused twice")
	}
	w := l.take()
	w.parts[0].to = 10
	if !l.committed(w.parts[0]) {
		t.Error("not resumed with room again")
	}
}

func TestRestingPartitionComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		running(l, 1)
		l.offer(nameOf(1), recordsOf(0, 3))
		l.again(l.take().parts[0], 3*time.Second)
		start := time.Now()
		if w := l.take(); time.Since(start) != 3*time.Second || count(w.parts[0]) != 3 {
			t.Errorf("came back after %s with %d records", time.Since(start), count(w.parts[0]))
		}
	})
}

func TestCloseEndsWaiting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		done := make(chan bool, 2)
		go func() { done <- l.take() == nil }()
		go func() { done <- l.takeLoad() == nil }()
		synctest.Wait()
		l.close()
		for range 2 {
			if !<-done {
				t.Error("something was handed out after the end")
			}
		}
	})
}

func count(p *part) (n int) {
	for _, r := range p.recs {
		n += len(r)
	}
	return n
}

func first(p *part) int64 { return p.recs[0][0].Offset }
