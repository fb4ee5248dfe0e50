package processor

import (
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// list is the ready list: the queues of all claims, and which of them a committer
// may take. Hand-off to it never blocks.
type list struct {
	records int   // most in one transaction
	size    int64 // most bytes in one transaction
	bound   int64 // most bytes in flight in the process

	freed chan struct{} // bytes were freed

	mu     sync.Mutex // guards what follows, and the queues
	cond   *sync.Cond // the ready list grew, a view is to be loaded, or it closed
	byName map[rebalance.Name]*queue
	ready  []*queue
	load   []*queue
	tend   []*queue // views to be sealed, merged or given a filter
	kept   map[stream.Partition]kept
	bytes  int64
	closed bool

	committers int   // of these, half may work for cold queues
	memory     int64 // bytes for the exact sets of all views
}

func newList(records int, size, bound int64) *list {
	l := &list{
		records: records, size: size, bound: bound, freed: make(chan struct{}, 1), byName: map[rebalance.Name]*queue{},
		kept: map[stream.Partition]kept{}, committers: 1,
	}
	l.cond = sync.NewCond(&l.mu)
	return l
}

// open makes the queue of a new claim. A queue belongs to one claim: an older one
// of the same partition is dropped.
func (l *list) open(c stream.Claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := rebalance.Name{Topic: c.TopicName, Number: c.Partition.Number}
	if old := l.byName[n]; old != nil {
		l.discard(old)
	}
	q := &queue{name: n, claim: c, phase: loading}
	l.byName[n] = q
	l.load = append(l.load, q)
	l.cond.Broadcast()
}

// drop forgets the queue of a claim. What is in flight finishes or is fenced.
func (l *list) drop(owner stream.UUID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range l.byName {
		if q.claim.Owner == owner {
			l.discard(q)
			return
		}
	}
}

func (l *list) discard(q *queue) {
	q.gone = true
	if l.byName[q.name] == q {
		delete(l.byName, q.name)
	}
	l.ready = slices.DeleteFunc(l.ready, func(r *queue) bool { return r == q })
	l.load = slices.DeleteFunc(l.load, func(r *queue) bool { return r == q })
	l.tend = slices.DeleteFunc(l.tend, func(r *queue) bool { return r == q })
	if q.untend != nil {
		q.untend()
	}
	l.landed(q)
	if q.phase != inFlight {
		l.free(q, q.bytes)
		l.keep(q)
	}
	q.recs = nil
}

func (l *list) free(q *queue, n int64) {
	q.bytes -= n
	l.bytes -= n
	select {
	case l.freed <- struct{}{}:
	default:
	}
}

// offer hands polled records to the partition's queue. It reports whether the
// partition's fetching should be paused: a queue holds a quarter of the bound at
// most. Records of a partition that is not running are discarded; its next claim
// seeks.
func (l *list) offer(n rebalance.Name, recs []*kgo.Record) (pause bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.byName[n]
	if q == nil || len(recs) == 0 {
		return false
	}
	l.bytes += q.push(recs)
	if q.phase == idle {
		l.makeReady(q)
	}
	if q.bytes > l.bound/4 && !q.full {
		q.full = true
		return true
	}
	return false
}

func (l *list) makeReady(q *queue) {
	q.phase = ready
	l.ready = append(l.ready, q)
	l.cond.Broadcast()
}

// over reports whether more bytes are in flight than the bound allows.
func (l *list) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bytes >= l.bound
}

// take waits for ready partitions and takes several small ones, or a part of a big
// one, for one transaction. It returns nil when the list is closed.
func (l *list) take() *work {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.anyReady() && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil
	}
	w := &work{}
	records, size := l.records, l.size
	for i := 0; i < len(l.ready) && records > 0 && size > 0; {
		q := l.ready[i]
		if (q.alone || q.cold) && len(w.parts) > 0 || q.cold && !l.roomForCold() {
			i++
			continue
		}
		if q.cold {
			records = min(records, coldRecords)
		}
		l.ready = slices.Delete(l.ready, i, i+1)
		q.phase = inFlight
		q.stale, q.suspected = q.stale || q.suspected, false
		recs, n, bytes := q.cut(records, size)
		w.parts = append(w.parts, &part{q: q, recs: recs, bytes: bytes})
		records -= n
		size -= bytes
		if q.alone || q.cold {
			break
		}
	}
	return w
}

// takeLoad waits for a claim whose view is to be loaded; nil when closed.
func (l *list) takeLoad() *queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.load) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil
	}
	q := l.load[0]
	l.load = l.load[1:]
	return q
}

// loaded gives a claim its view: from now on it runs.
func (l *list) loaded(q *queue, v *dedup.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.gone {
		return
	}
	q.view = v
	q.cold = v.Stats().Ready < 1
	l.settle(q)
	l.tendTo(q)
}

// reload sends a claim back to have its view loaded, with the records it has.
func (l *list) reload(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if q.gone {
		l.free(q, q.bytes)
		return
	}
	l.landed(q)
	if q.untend != nil { // its swaps would make the new view one of other segments
		q.untend()
	}
	q.phase, q.view, q.tired = loading, nil, false
	l.load = append(l.load, q)
	l.cond.Broadcast()
}

// reloadAfter tries to load a claim's view again after a wait.
func (l *list) reloadAfter(q *queue, wait time.Duration) {
	time.AfterFunc(wait, func() { l.reload(q) })
}

// settle makes q ready if it has records.
func (l *list) settle(q *queue) {
	if len(q.recs) > 0 {
		l.makeReady(q)
		return
	}
	q.phase = idle
	q.calm = time.Now()
}

// committed moves the claim's position and frees what was in flight. It reports
// whether the partition's fetching should be resumed. A part that a record stopped
// ends its queue here: ready again, it would be taken and committed past the records
// that the part did not come to.
func (l *list) committed(p *part) (resume bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := p.q
	l.free(q, p.bytes)
	q.claim.Next, q.claim.LeaderEpoch = p.to, p.leaderEpoch
	if !p.newest.IsZero() {
		q.newest = p.newest
	}
	q.alone = false
	q.blame = blame{poison: q.blame.poison, blamed: q.blame.blamed}
	if p.stop != nil {
		l.discard(q)
	}
	if !q.gone && !q.tending && (l.memory > 0 && int64(q.view.Keys()) >= l.sealAt() || q.view.Eager()) {
		l.tendTo(q)
	}
	return l.back(q)
}

// back returns a queue from its committer to the list.
func (l *list) back(q *queue) (resume bool) {
	l.landed(q)
	if q.gone {
		l.free(q, q.bytes)
		return false
	}
	l.settle(q)
	if q.full && q.bytes < l.bound/8 {
		q.full = false
		return true
	}
	return false
}

// again puts a part that was not committed back to the front of its queue, to run
// alone until it succeeded once, after a wait.
func (l *list) again(p *part, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := p.q
	l.landed(q)
	if q.gone {
		l.free(q, q.bytes)
		return
	}
	q.recs = append(p.recs, q.recs...)
	q.alone = true
	if wait <= 0 {
		l.makeReady(q)
		return
	}
	q.phase = resting
	time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.phase == resting && !q.gone {
			l.makeReady(q)
		}
	})
}

// restore puts a part's records back to the front of its queue, still in flight.
func (l *list) restore(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !p.q.gone {
		p.q.recs = append(p.recs, p.q.recs...)
	}
}

// release ends a part whose claim is over, and its queue with it: the group may have
// to drop the claim yet, in a revoke under way.
func (l *list) release(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discard(p.q)
	l.free(p.q, p.q.bytes)
}

// close lets committers and loaders end once what they have is done.
func (l *list) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Broadcast()
}

// resting claims, as the watch compares them with the database.
type held struct {
	q     *queue
	claim stream.Claim
	log   int64
	head  stream.UUID
}

// quiet returns the claims that have nothing in flight, with what memory knows.
func (l *list) quiet() []held {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []held
	for _, q := range l.byName {
		if q.phase != inFlight && q.view != nil {
			hs = append(hs, held{q, q.claim, q.view.Log, q.view.HeadID})
		}
	}
	return hs
}

// unchanged reports whether a claim is still as quiet returned it.
func (l *list) unchanged(h held) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !h.q.gone && h.q.phase != inFlight && h.q.view != nil && h.q.claim == h.claim
}

// suspectLog makes the claim catch its view up before its next batch; the one in
// flight is left alone.
func (l *list) suspectLog(q *queue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q.suspected = true
}

// standing is a queue as status and metrics show it.
type standing struct {
	claim   stream.Claim
	phase   phase
	records int
	view    dedup.Stats
	tries   int
	newest  time.Time
}

func (l *list) standings() (map[rebalance.Name]standing, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[rebalance.Name]standing, len(l.byName))
	for n, q := range l.byName {
		s := standing{claim: q.claim, phase: q.phase, newest: q.newest}
		for _, r := range q.recs {
			s.records += len(r)
		}
		if q.phase != inFlight { // then it is the committer's
			s.tries = q.blame.tries
		}
		if q.view != nil {
			s.view = q.view.Stats()
		}
		out[n] = s
	}
	return out, l.bytes
}
