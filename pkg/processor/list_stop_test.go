package processor

import (
	"testing"
	"testing/synctest"

	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// Whoever hears first that the partition stops, or nobody because it was revoked in
// that moment: the records behind the one that stopped it are not handed out.
func TestAPartThatARecordStoppedEndsItsQueue(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	q := running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 30))
	p := l.take().parts[0]
	p.to, p.stop = 5, &rebalance.Cause{Code: "partitioner"}
	l.committed(p)
	if len(l.ready) > 0 || !q.gone || len(l.byName) > 0 {
		t.Error("records behind the one that stopped the partition are ready")
	}
	l.drop(stream.UUID{1})
	if l.bytes != 0 {
		t.Errorf("%d bytes are still in flight", l.bytes)
	}
}

// A fenced part is given up while a revoke takes its claim away: the group knows the
// claim no more, the list still does. The part ends first, the queue is dropped
// behind it.
func TestBytesOfAPartThatEndsBeforeItsClaimIsDropped(t *testing.T) {
	t.Parallel()
	l := newList(10, 1<<20, 1<<30)
	running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 30))
	l.release(l.take().parts[0])
	l.drop(stream.UUID{1})
	if l.bytes != 0 {
		t.Errorf("%d bytes are counted for ever", l.bytes)
	}
}

// The watch took its look at a queue before a committer took it, and comes to its
// conclusion behind: the doubt that an unknown COMMIT left stays.
func TestTheWatchLeavesAQueueInFlightAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newList(10, 1<<20, 1<<30)
		q := running(l, 1)
		l.offer(nameOf(1), recordsOf(0, 3))
		q.scope.stale = true
		p := l.take().parts[0]
		go l.suspectLog(q.scope)
		stale := p.q.scope.stale // as a committer reads it: with the queue in flight, without the lock
		synctest.Wait()
		if !stale || !p.q.scope.stale {
			t.Error("a view in doubt is trusted again")
		}
	})
}
