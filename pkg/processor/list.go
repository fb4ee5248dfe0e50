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
	records    int             // most in one transaction
	size       int64           // most bytes in one transaction
	bound      int64           // most bytes in flight in the process
	linger     time.Duration   // how long a small batch waits for more
	committers int             // of these, half may work for cold scopes
	memory     int64           // bytes for the exact sets of all views
	ages       bool            // there is a retention: what is small is sealed too
	shared     map[string]bool // topics in scope topic

	freed chan struct{} // bytes were freed

	mu       sync.Mutex // guards what follows, the queues and the scopes
	cond     *sync.Cond // something can be taken, loaded or tended, or the list closed
	byName   map[rebalance.Name]*queue
	scopes   map[stream.Partition]*scope
	ready    []*queue
	load     []*scope
	tend     []*scope // views to be sealed, merged or given a filter
	kept     map[stream.Partition]kept
	outgoing []*queue             // of partitions that the group took away; none is in byName
	flying   map[*queue]time.Time // when what is in flight was taken
	bytes    int64
	closed   bool
}

func newList(records int, size, bound int64) *list {
	l := &list{
		records: records, size: size, bound: bound, committers: 1, freed: make(chan struct{}, 1),
		flying: map[*queue]time.Time{},
		byName: map[rebalance.Name]*queue{}, scopes: map[stream.Partition]*scope{}, kept: map[stream.Partition]kept{},
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
	l.giveUp(func(q *queue) bool { return q.name == n }) // our own takeover has ended its claim
	l.byName[n] = &queue{name: n, claim: c, scope: l.join(c)}
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

// discard ends a queue. The bytes of a part in flight are freed when it lands.
func (l *list) discard(q *queue) {
	if q.gone {
		return
	}
	q.gone = true
	l.forget(q)
	if l.byName[q.name] == q {
		delete(l.byName, q.name)
	}
	l.ready = slices.DeleteFunc(l.ready, func(r *queue) bool { return r == q })
	q.recs = nil
	if q.phase != inFlight {
		l.free(q, q.bytes)
	}
	q.scope.queues--
	l.leave(q.scope)
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
	if q.bytes > l.bound/4 && !q.full {
		q.full, pause = true, true
	}
	if q.phase == idle || q.phase == lingering {
		l.settle(q)
	}
	return pause
}

// settle makes q ready if it has records, at once or when its batch has lingered.
func (l *list) settle(q *queue) {
	switch {
	case len(q.recs) == 0 && q.outgoing != nil:
		l.discard(q)
	case len(q.recs) == 0:
		q.phase, q.calm = idle, time.Now()
	case l.linger == 0, q.full, q.bytes >= l.size, q.waiting() >= l.records:
		l.makeReady(q)
	case q.phase != lingering:
		l.rest(q, lingering, l.linger)
	}
}

func (l *list) makeReady(q *queue) {
	q.phase = ready
	l.ready = append(l.ready, q)
	l.cond.Broadcast()
}

// rest makes q ready after a wait.
func (l *list) rest(q *queue, as phase, wait time.Duration) {
	q.phase = as
	q.rests++
	now := q.rests
	time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if q.phase == as && q.rests == now && !q.gone {
			l.makeReady(q)
		}
	})
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
	w := &work{}
	for !slices.ContainsFunc(l.ready, func(q *queue) bool { return l.may(q, w) }) && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil
	}
	records, size := l.records, l.size
	for i := 0; i < len(l.ready) && records > 0 && size > 0; {
		q := l.ready[i]
		if !l.may(q, w) {
			i++
			continue
		}
		s := q.scope
		if s.cold {
			records = min(records, coldRecords)
		}
		l.ready = slices.Delete(l.ready, i, i+1)
		q.phase, l.flying[q] = inFlight, time.Now()
		records = min(records, max(l.records>>q.blame.late, 1))
		s.stale, s.suspected = s.stale || s.suspected, false
		s.parts++
		recs, n, bytes := q.cut(records, size)
		w.add(&part{q: q, recs: recs, bytes: bytes})
		records -= n
		size -= bytes
		if q.single() || s.cold {
			break
		}
	}
	return w
}

// may reports whether a committer may take a ready queue into w. A scope is in one
// transaction at a time; one that other members write to as well has it alone.
func (l *list) may(q *queue, w *work) bool {
	s, first := q.scope, len(w.parts) == 0
	switch {
	case s.loading, s.parts > 0 && !w.has(s):
		return false
	case first:
		return !s.cold || l.roomForCold()
	case q.single(), s.cold:
		return false
	case s.shared(), w.logs[0].scope.shared():
		return w.has(s)
	}
	return true
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
	q.blame = blame{poison: q.blame.poison, blamed: q.blame.blamed, late: max(q.blame.late-1, 0)}
	if p.stop != nil {
		l.discard(q)
	}
	if s := q.scope; !s.tending && (l.memory > 0 && int64(s.view.Keys()) >= l.sealAt() || s.view.Eager()) {
		l.tendTo(s)
	}
	if !l.land(q) {
		return false
	}
	l.settle(q)
	if q.full && q.bytes < l.bound/8 && q.outgoing == nil {
		q.full = false
		return true
	}
	return false
}

// land ends the flight of a queue's part, whatever became of it. It reports whether
// the queue is still there.
func (l *list) land(q *queue) bool {
	if q.gone {
		l.free(q, q.bytes)
	}
	q.phase = idle
	delete(l.flying, q)
	q.scope.parts--
	q.scope.landings++
	l.leave(q.scope)
	l.cond.Broadcast() // the scope's other queues may be taken now
	return !q.gone
}

// back returns a part that was not tried: it is ready again.
func (l *list) back(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.land(p.q) {
		p.q.recs = append(p.recs, p.q.recs...)
		l.makeReady(p.q)
	}
}

// again returns a part that was not committed: it is ready after a wait, and runs
// alone until it succeeded once. One whose queue is outgoing is left to the next owner.
func (l *list) again(p *part, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := p.q
	if !l.land(q) {
		return
	}
	q.recs = append(p.recs, q.recs...)
	if q.outgoing != nil {
		l.discard(q)
		return
	}
	q.alone = true
	if wait <= 0 {
		l.makeReady(q)
		return
	}
	l.rest(q, resting, wait)
}

// release ends a part whose claim is over, and its queue with it: the group may have
// to drop the claim yet, in a revoke under way.
func (l *list) release(p *part) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.discard(p.q)
	l.land(p.q)
}

// close lets committers and loaders end once what they have is done.
func (l *list) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.cond.Broadcast()
}

// held is a claim at rest, as the watch compares it with the database.
type held struct {
	q     *queue
	claim stream.Claim
	log   int64
	head  stream.UUID
}

// quiet returns the claims whose scope has nothing in flight, with what memory knows.
func (l *list) quiet() []held {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []held
	for _, q := range l.byName {
		if s := q.scope; s.parts == 0 && !s.loading {
			hs = append(hs, held{q, q.claim, s.view.Log, s.view.HeadID})
		}
	}
	return hs
}

// unchanged reports whether a claim is still as quiet returned it.
func (l *list) unchanged(h held) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := h.q.scope
	return !h.q.gone && s.parts == 0 && !s.loading && s.view.HeadID == h.head && h.q.claim == h.claim
}

// standing is a queue as status and metrics show it.
type standing struct {
	claim   stream.Claim
	records int
	scope   stream.Partition
	view    dedup.Stats // of its scope
	tries   int
	newest  time.Time
	dry     bool // it has nothing, and is fetched
}

func (l *list) standings() (map[rebalance.Name]standing, int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[rebalance.Name]standing, len(l.byName))
	for n, q := range l.byName {
		s := standing{claim: q.claim, newest: q.newest, records: q.waiting(), scope: q.scope.name, dry: q.phase == idle && !q.full}
		if q.phase != inFlight { // then it is the committer's
			s.tries = q.blame.tries
		}
		if !q.scope.loading {
			s.view = q.scope.view.Stats()
		}
		out[n] = s
	}
	return out, l.bytes
}

// flights returns since when partitions are in flight, also those whose claim is gone.
func (l *list) flights() map[rebalance.Name]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := map[rebalance.Name]time.Time{}
	for q, began := range l.flying {
		if at, ok := out[q.name]; !ok || began.Before(at) {
			out[q.name] = began
		}
	}
	return out
}
