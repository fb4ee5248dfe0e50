package processor

import (
	"math"
	"slices"
	"time"

	"effectonce/pkg/dedup"
	"effectonce/pkg/stream"
)

// scope is one dedup log and the queues of the partitions held under it: one in
// scope partition, all of a topic in scope topic. At most one committer works for a
// scope at a time, so its view has one goroutine that appends.
type scope struct {
	name     stream.Partition // its number is dedup.WholeTopic in scope topic
	topic    string
	queues   int  // of claims held
	parts    int  // in flight
	landings int  // of parts, so far
	closed   bool // no queue is left: the view is kept, not used

	loading   bool // its view is being loaded or caught up: no committer may have it
	lent      bool // a loader has its view: nobody else may, until it gives it back
	cold      bool // its view has no filter yet: unknown keys are looked up in Postgres
	suspected bool // stale from the next taking on

	tending bool   // its view is worked on in the background, or waits for it
	tired   bool   // that failed: it is not worked on for a while
	untend  func() // ends that work when the view goes, but for a filter on its way
	end     func() // ends all of it

	// The committer's while a part is in flight, the loader's while it is loading,
	// the list's otherwise.
	view  *dedup.View // nil until it was loaded for the first time
	stale bool        // the log may have moved: catch up first
}

// shared reports whether other members append to the same log as a matter of course.
func (s *scope) shared() bool { return s.name.Number == dedup.WholeTopic }

const (
	keptFor   = 5 * time.Minute // how long the view of a scope that went away is kept
	keyBytes  = 27              // of memory a key in an exact set takes, growth included
	leastSeal = 1000            // keys; below, a segment is not worth its row
	mostSeal  = 1_000_000       // keys
)

// kept is the view of a scope that went away: when it comes back, the view catches
// up from its head_id instead of being loaded.
type kept struct {
	view *dedup.View
	end  *time.Timer // drops it
}

// join returns the scope of a claim, after making it if it is new. One that is there
// already catches up first: somebody else may have held the partition meanwhile.
func (l *list) join(c stream.Claim) *scope {
	name := c.Partition
	if l.shared[c.TopicName] {
		name.Number = dedup.WholeTopic
	}
	s := l.scopes[name]
	if s == nil {
		s = &scope{name: name, topic: c.TopicName, view: l.reuse(name)}
		l.scopes[name] = s
		l.reload(s)
	}
	s.suspected = true
	s.queues++
	return s
}

// leave closes a scope that has neither queues nor anything in flight.
func (l *list) leave(s *scope) {
	if s.queues > 0 || s.parts > 0 || s.closed {
		return
	}
	s.closed = true
	delete(l.scopes, s.name)
	l.load = slices.DeleteFunc(l.load, func(x *scope) bool { return x == s })
	l.tend = slices.DeleteFunc(l.tend, func(x *scope) bool { return x == s })
	if s.end != nil {
		s.end()
	}
	if !s.lent { // or else the next scope of this name would have it too
		l.keep(s)
	}
}

// keep remembers a closed scope's view for a while.
func (l *list) keep(s *scope) {
	v := s.view
	if v == nil {
		return
	}
	v.Forget(time.Now())
	if old := l.kept[s.name]; old.view != nil {
		old.end.Stop()
	}
	l.kept[s.name] = kept{v, time.AfterFunc(keptFor, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.kept[s.name].view == v {
			delete(l.kept, s.name)
		}
	})}
}

// reuse hands out a scope's kept view, nil if there is none.
func (l *list) reuse(name stream.Partition) *dedup.View {
	k := l.kept[name]
	if k.view != nil {
		k.end.Stop()
		delete(l.kept, name)
	}
	return k.view
}

// reload has a scope's view loaded again, or caught up if that is enough. The parts
// that are ready wait for it. Outgoing queues are given up: it may take minutes, and
// the next owner is at it.
func (l *list) reload(s *scope) {
	l.giveUp(func(q *queue) bool { return q.scope == s })
	if s.closed {
		return
	}
	if s.untend != nil { // its swaps would make the new view one of other segments
		s.untend()
	}
	s.loading, s.tired = true, false
	l.load = append(l.load, s)
	l.cond.Broadcast()
}

// dropView has the view of a scope loaded again that has a part in flight.
func (l *list) dropView(s *scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.stale = false
	l.reload(s)
}

// notLoaded takes back the view of a scope that could not be loaded, for whatever
// reason, and tries again after a wait. Where the claims under it were stopped or
// given up there is no scope left to try it for; one that came while they were told
// would otherwise wait for a loader for ever.
func (l *list) notLoaded(s *scope, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.lent = false
	if s.closed {
		l.keep(s)
		return
	}
	time.AfterFunc(wait, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !s.closed {
			l.reload(s)
		}
	})
}

// takeLoad waits for a scope whose view is to be loaded; nil when the list is closed.
func (l *list) takeLoad() *scope {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.load) == 0 && !l.closed {
		l.cond.Wait()
	}
	if l.closed {
		return nil
	}
	s := l.load[0]
	l.load = l.load[1:]
	s.lent = true
	s.suspected = false // what makes it so from here on may come too late for the loader
	return s
}

// loaded gives a scope its view: from now on its partitions run.
func (l *list) loaded(s *scope, v *dedup.View) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.view, s.loading, s.lent = v, false, false
	if s.closed {
		l.keep(s)
		return
	}
	s.cold = v.Stats().Ready < 1
	l.tendTo(s)
	l.tendFull()
	l.cond.Broadcast()
}

// suspectLog makes a scope catch its view up before its next batch; the one in
// flight is left alone. What others append as a matter of course is learned at once
// when there is nothing else to do: a view far behind would have to be loaded.
func (l *list) suspectLog(s *scope) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.suspected = true
	if s.shared() && !s.closed && !s.loading && s.parts == 0 {
		s.loading = true
		l.load = append(l.load, s)
		l.cond.Broadcast()
	}
}

// claims are those of the partitions held under a scope.
func (l *list) claims(s *scope) []stream.Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	var cs []stream.Claim
	for _, q := range l.byName {
		if q.scope == s {
			cs = append(cs, q.claim)
		}
	}
	return cs
}

// sealAt is how many keys an exact set may hold before it is sealed: the memory is
// shared by all views, so the more scopes, the smaller the seals. Without a bound
// nothing is ever sealed.
func (l *list) sealAt() int64 {
	if l.memory == 0 {
		return math.MaxInt64
	}
	views := int64(max(len(l.scopes)+len(l.kept), 1))
	return min(max(l.memory/keyBytes/views, leastSeal), mostSeal)
}

// poorRate is the share of false positives that is worth a warning.
const poorRate = 0.01

// gateRoom is the memory that a view's gate may take: its part of what the filters of
// single segments, a byte a key, leave of the half that is the filters'. 0 is no
// bound.
func (l *list) gateRoom(v *dedup.View) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.memory == 0 {
		return 0
	}
	own, all := v.Stats().Sealed, int64(0)
	for _, s := range l.scopes {
		if s.view != nil && !s.loading {
			all += s.view.Stats().Sealed
		}
	}
	return max(int64(float64(l.memory-all)*float64(own)/float64(max(all, own, 1))), 1)
}

// tendFull has views sealed that hold more than their share, which shrinks as scopes
// come.
func (l *list) tendFull() {
	if l.memory == 0 {
		return
	}
	at := l.sealAt()
	for _, s := range l.scopes {
		if s.view != nil && !s.loading && int64(s.view.Keys()) >= at {
			l.tendTo(s)
		}
	}
}

// roomForCold reports whether one more committer may work for a view without a
// filter: at most half of them do.
func (l *list) roomForCold() bool {
	n := 0
	for _, s := range l.scopes {
		if s.cold && s.parts > 0 {
			n++
		}
	}
	return n < max(l.committers/2, 1)
}
