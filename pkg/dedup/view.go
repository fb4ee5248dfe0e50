package dedup

import (
	"context"
	"slices"
	"sync"
	"time"

	"effectonce/pkg/stream"
)

// View is what memory knows of one log: exactly the keys of its runs behind sealed
// and up to HeadID, and filters over the segments that hold the runs before.
//
// Two goroutines at most use a view. One appends: the committer that has its
// partition in flight. It alone adds to what the view contains (Learn, CatchUp),
// so it may read Head and HeadID freely. The other works in the background (Seal,
// Compact, Rebuild, Expire, ReadWhole, which wait for each other). It changes where
// keys lie, and lets go of what has expired.
//
// Three things hold at every moment, under mu:
//
//   - every key of a run up to HeadID is in a generation, or in a segment of the
//     manifest, or has expired from one. Keys leave the exact set only as a whole generation, in the step
//     that takes the manifest of the segment that holds exactly these keys;
//   - the gate holds every key of the manifest's segments, the base those of the ones
//     that are not outside, and the gate being built all below ready;
//   - sealed of the manifest is not beyond Head. So a hit in its segments is a claim
//     about runs that this view contains.
type View struct {
	Log        int64
	Generation []byte

	Head   int64       // number of the last run it contains, for contiguity
	HeadID stream.UUID // its name: the only thing that is compared

	task    chan struct{} // holds one token while something works in the background
	offered offered       // of whoever has the token

	copying sync.Mutex // before mu; held while the gate is read without mu: nobody takes it out of the view then

	mu       sync.Mutex // guards what follows and writes to the head; held for a batch's check at most
	fresh    *generation
	sealing  *generation // being sealed; nil mostly
	manifest stream.UUID
	sealed   int64      // last run that lies in a segment
	segments []*Segment // live ones; never changed in place
	gate     *Filter    // nil until it is ready
	base     *Filter    // holds the keys of the segments that are not outside; nil mostly
	building *Filter    // the next gate: base, or a new one
	ready    uint64     // building holds every key whose first word is below
	pending  *swap      // sent, and perhaps committed
	heir     *View      // the view that was loaded in place of this one
	bound    int64      // bytes of a new gate; 0 is no bound

	warm  map[*Segment]*warmth // of live segments that had hits
	eager bool                 // ReadWhole has something to do
}

// generation is the exact set of the keys of some runs.
type generation struct {
	keys    *set
	learned int64 // keys of its runs, counted run by run
	head    int64 // its last run, once it is being sealed
	headID  stream.UUID
}

// swap is a change of a log's segments.
type swap struct {
	from, manifest stream.UUID
	segment        *Segment // nil when the runs have no keys
	dead           []*Segment
	gen            *generation // what the segment was made of; nil in a compaction
	expiry         *expiry     // why others died; nil in a seal and a compaction
}

func newView(log int64, digest []byte) *View {
	return &View{Log: log, Generation: digest, task: make(chan struct{}, 1), fresh: newGeneration(), warm: map[*Segment]*warmth{}}
}

func newGeneration() *generation { return &generation{keys: newSet(0)} }

// Keys is the number of keys in the exact set.
func (v *View) Keys() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	for _, g := range []*generation{v.fresh, v.sealing} {
		if g != nil {
			n += g.keys.n
		}
	}
	return n
}

// Learn adds the run that was just committed on top of this view. Call it only
// after COMMIT was answered.
func (v *View) Learn(id stream.UUID, run []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.learnKeys(run)
	v.Head++
	v.HeadID = id
}

// LearnKeys adds keys without moving the head: right only for the test that shows
// why a view learns after the commit.
func (v *View) LearnKeys(run []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.learnKeys(run)
}

func (v *View) learnKeys(run []byte) {
	for ; len(run) >= 16; run = run[16:] {
		v.fresh.keys.add(slotAt(run))
		v.fresh.learned++
	}
}

// answer is what memory says about a key.
type answer uint8

const (
	absent answer = iota // in no run of this view
	seen                 // in one of them
	maybe                // the segments must be asked
)

// find asks memory, with mu held. A filter's yes is never more than a maybe, and
// its no counts only where it holds every key of the segments.
func (v *View) find(k slot) answer {
	switch {
	case v.unsealedHas(k):
		return seen
	case len(v.segments) == 0:
		return absent
	case v.gate != nil && !v.gate.has(k):
		return absent
	case v.gate == nil && v.building != nil && k.hi < v.ready && !v.building.has(k):
		return absent
	}
	return maybe
}

// unsealedHas reports whether the key is in the exact set, with mu held.
func (v *View) unsealedHas(k slot) bool {
	return v.fresh.keys.has(k) || v.sealing != nil && v.sealing.keys.has(k)
}

// Is reports whether the view is still its log's: the log's row has the view's
// head_id, and a manifest the view has, or is about to take, itself.
func (v *View) Is(headID, manifest stream.UUID) bool { return headID == v.HeadID && v.adopt(manifest) }

// adopt reports whether a manifest found in the database is the view's. One that
// the view has sent itself is taken here: who sees it knows that its COMMIT
// happened.
func (v *View) adopt(manifest stream.UUID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if p := v.pending; p != nil && p.manifest == manifest && p.from == v.manifest {
		v.take(p)
	}
	return v.manifest == manifest
}

// named is the manifest that the view has.
func (v *View) named() stream.UUID {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.manifest
}

// take makes the view that of a swap. The gate has the segment's keys already, so
// exactly these may leave the exact set.
func (v *View) take(p *swap) {
	list := slices.DeleteFunc(slices.Clone(v.segments), func(s *Segment) bool { return slices.Contains(p.dead, s) })
	if p.segment != nil {
		p.segment.outside = slices.ContainsFunc(p.dead, func(s *Segment) bool { return s.outside })
		list = append(list, p.segment)
	}
	for _, seg := range p.dead {
		delete(v.warm, seg)
	}
	v.manifest, v.segments, v.pending = p.manifest, list, nil
	if p.expiry != nil {
		v.fade(p.dead)
	}
	if p.gen != nil {
		v.sealed, v.sealing = p.gen.head, nil
	}
}

// fade counts the gate's keys that have expired. It goes with the last of them: the
// next seal makes another.
func (v *View) fade(dead []*Segment) {
	if len(v.segments) == 0 {
		v.gate, v.base = nil, nil
		return
	}
	for _, seg := range dead {
		if v.gate != nil {
			v.gate.gone += seg.Keys
		}
	}
}

// freeze sets the exact set aside as the generation to seal, nil if there is no run
// in it. A generation whose seal failed is returned again.
func (v *View) freeze() *generation {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.sealing == nil && v.Head > v.sealed {
		v.sealing, v.fresh = v.fresh, newGeneration()
		v.sealing.head, v.sealing.headID = v.Head, v.HeadID
	}
	return v.sealing
}

// some is how many keys one holding of mu adds to a filter: well below a batch's
// check.
const some = 2000

// cover adds the keys of a segment to be to the gate. It comes before the segment
// is made live, so that no moment sees keys in neither the exact set nor the gate.
func (v *View) cover(keys []slot) {
	v.mu.Lock()
	if len(v.segments) == 0 && v.gate == nil && v.building == nil {
		v.gate = v.newGate(int64(len(keys)))
	}
	v.mu.Unlock()
	for part := range slices.Chunk(keys, some) {
		v.mu.Lock()
		for _, f := range v.gates() {
			for _, k := range part {
				f.add(k)
			}
		}
		v.mu.Unlock()
	}
}

// gates are all that hold keys of segments, with mu held.
func (v *View) gates() []*Filter {
	var list []*Filter
	for _, f := range []*Filter{v.gate, v.base, v.building} {
		if f != nil && !slices.Contains(list, f) {
			list = append(list, f)
		}
	}
	return list
}

// roomy is the capacity of a gate over so many keys.
func roomy(keys int64) int64 { return keys + keys/2 }

// Bound has the next gates take so many bytes at most, at the price of more false
// positives. 0 is no bound.
func (v *View) Bound(bytes int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.bound = bytes
}

// newGate makes a gate over so many keys.
func (v *View) newGate(keys int64) *Filter { return newFilter(roomy(keys), v.gateShape(roomy(keys))) }

// gateShape is the shape of a gate of this capacity, in the memory that there is.
func (v *View) gateShape(capacity int64) shape {
	if v.bound > 0 {
		return gateShape.within(capacity, v.bound)
	}
	return gateShape
}

// background waits until nothing else works on the view in the background, and
// returns what ends the turn.
func (v *View) background(ctx context.Context) (done func(), err error) {
	select {
	case v.task <- struct{}{}:
		return func() { <-v.task }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Stats is a view's standing.
type Stats struct {
	Keys      int       // in the exact set
	Runs      int64     // not sealed yet
	Segments  int       // live
	Tiers     []int     // live segments by tier
	Sealed    int64     // keys in them
	Gate      int64     // keys the gate holds
	Capacity  int64     // keys it was made for
	Bytes     int64     // of memory: the exact set, the gate, the segments' filters and those held whole
	GateBytes int64     // of these, the gate
	Filters   int64     // of these, the gate and the segments' filters
	Whole     int64     // of these, segments held whole
	Expired   int64     // of the gate's keys, those that have expired
	Rate      float64   // share of false positives, by design, of the gate when it is full
	Oldest    time.Time // the least of the times that its segments' records begin at; zero when unknown
	Ready     float64   // share of the key space in which a filter answers
	Rebuild   bool      // the gate is missing or full, or 30 % of its keys have expired: Rebuild
}

// Stats returns the view's standing.
func (v *View) Stats() Stats {
	v.mu.Lock()
	defer v.mu.Unlock()
	s := Stats{Runs: v.Head - v.sealed, Segments: len(v.segments), Ready: 1}
	for _, g := range []*generation{v.fresh, v.sealing} {
		if g != nil {
			s.Keys += g.keys.n
			s.Bytes += int64(len(g.keys.slots)) * 16
		}
	}
	for _, seg := range v.segments {
		for len(s.Tiers) <= seg.Tier {
			s.Tiers = append(s.Tiers, 0)
		}
		s.Tiers[seg.Tier]++
		s.Sealed += seg.Keys
		if !seg.Oldest.IsZero() && (s.Oldest.IsZero() || seg.Oldest.Before(s.Oldest)) {
			s.Oldest = seg.Oldest
		}
		if seg.filter != nil {
			s.Filters += seg.filter.bytes()
		} else {
			s.Rebuild = true
		}
		if w := v.warm[seg]; w != nil && w.whole != nil {
			s.Whole += wholeBytes(seg.Keys)
		}
	}
	for _, f := range v.gates() {
		s.GateBytes += f.bytes()
	}
	s.Filters += s.GateBytes
	s.Bytes += s.Filters + s.Whole
	switch {
	case v.gate != nil:
		s.Gate, s.Capacity, s.Expired, s.Rate = v.gate.n, v.gate.capacity, v.gate.gone, v.gate.rate()
		s.Rebuild = s.Rebuild || v.gate.full() || v.gate.faded()
	case len(v.segments) > 0:
		s.Rebuild, s.Ready = true, float64(v.ready)/(1<<64)
	}
	return s
}
