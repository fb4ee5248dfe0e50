package dedup

import (
	"cmp"
	"slices"

	"effectonce/pkg/stream"
)

// Fold knows which records of one log in a batch repeat each other and which
// repeat the log. Records are named by their index in the batch. It is built once
// a batch (Reset, Add, Check, LookUp) and asked as often as faults change who wins.
type Fold struct {
	Asked     int // keys that the exact set and the gate could not decide
	Confirmed int // of these, keys that a segment has; the others were false positives
	Negative  int // keys that the gate said are in no segment

	lo      int // index of the first record
	entries []entry
	group   []int32 // record − lo → its key's group, none without a key
	seen    []bool  // group → in the view: a duplicate
	stamp   []int32 // group → the last Winners call that met it
	calls   int32

	open     []question // sorted
	pairs    []pair     // of these with the segments that may have them; none when all must be asked
	view     *View
	manifest stream.UUID // the view's at Check
	head     int64       // of it at Check
	among    []candidate // its segments
}

const none = -1

type entry struct {
	slot
	index int32
}

// Reset empties the fold for records lo, lo+1, …
func (f *Fold) Reset(lo int) {
	f.lo, f.calls, f.open = lo, 0, f.open[:0]
	f.Asked, f.Confirmed, f.Negative = 0, 0, 0
	f.entries, f.group, f.seen, f.stamp = f.entries[:0], f.group[:0], f.seen[:0], f.stamp[:0]
}

// Add appends the next record with its fingerprint.
func (f *Fold) Add(fp Fingerprint) {
	f.entries = append(f.entries, entry{slotOf(fp), int32(len(f.group))})
	f.group = append(f.group, 0)
}

// AddKeyless appends the next record, which has no fingerprint: nothing repeats it.
func (f *Fold) AddKeyless() { f.group = append(f.group, none) }

// Check sorts the keys, finds the repeats and asks the view for each key once. It
// returns the number of keys that memory cannot decide: while there are any, LookUp
// must decide them before anything else is asked.
func (f *Fold) Check(v *View) int {
	slices.SortFunc(f.entries, func(a, b entry) int {
		if c := a.compare(b.slot); c != 0 {
			return c
		}
		return cmp.Compare(a.index, b.index)
	})
	f.seen, f.open, f.Negative = f.seen[:0], f.open[:0], 0
	v.mu.Lock()
	for i, e := range f.entries {
		if i == 0 || e.slot != f.entries[i-1].slot {
			a := v.find(e.slot)
			switch {
			case a == absent && len(v.segments) > 0:
				f.Negative++
			case a == maybe:
				f.open = append(f.open, question{slot: e.slot, group: int32(len(f.seen))})
			}
			f.seen = append(f.seen, a == seen)
		}
		f.group[e.index] = int32(len(f.seen) - 1)
	}
	f.view, f.manifest, f.head, f.among = v, v.manifest, v.Head, f.among[:0]
	if len(f.open) > 0 {
		f.among = v.candidates(f.among)
	}
	v.mu.Unlock()
	f.calls = 0
	f.stamp = append(f.stamp[:0], make([]int32, len(f.seen))...)
	f.Asked, f.Confirmed = len(f.open), 0
	if len(f.open) > 0 {
		f.narrow()
	}
	return len(f.open)
}

// Open reports whether keys are not decided: LookUp was not called, or it found
// that the log's segments are not the view's. Catch the view up and check again.
func (f *Fold) Open() bool { return len(f.open) > 0 }

// decided panics while keys are open: to take one for new would apply it twice.
func (f *Fold) decided() {
	if f.Open() {
		panic("dedup: fold asked while keys are undecided")
	}
}

// Duplicate reports whether record i repeats the log.
func (f *Fold) Duplicate(i int) bool {
	f.decided()
	g := f.group[i-f.lo]
	return g != none && f.seen[g]
}

// Winners appends to picks the records of [lo, hi) to apply: the first of each
// key that skip does not exclude and that neither the log nor applied has. applied
// marks records applied before this call and may be nil.
func (f *Fold) Winners(picks []int, lo, hi int, skip, applied func(i int) bool) []int {
	f.decided()
	f.calls++
	if applied != nil {
		for i := range f.group {
			if g := f.group[i]; g != none && applied(f.lo+i) {
				f.stamp[g] = f.calls
			}
		}
	}
	for i := lo; i < hi; i++ {
		if skip(i) || applied != nil && applied(i) {
			continue
		}
		if g := f.group[i-f.lo]; g != none {
			if f.seen[g] || f.stamp[g] == f.calls {
				continue
			}
			f.stamp[g] = f.calls
		}
		picks = append(picks, i)
	}
	return picks
}

// Overtaken reports whether the view has learned, since Check, the key of a record
// that was taken for new and that applies names: somebody else has applied it. Roll
// back and check again then. It is about the very view of Check: with one that was
// loaded since, check again anyway. It asks memory alone: what was learned since Check is in
// the exact set, or the view's own seal has taken some of it out behind Check, and
// then the answer is yes without looking.
func (f *Fold) Overtaken(applies func(i int) bool) bool {
	f.decided()
	v := f.view
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.Head == f.head {
		return false
	}
	for _, e := range f.entries {
		i := f.lo + int(e.index)
		if !f.seen[f.group[e.index]] && applies(i) && (v.sealed > f.head || v.unsealedHas(e.slot)) {
			return true
		}
	}
	return false
}

// Run returns the sorted fingerprints of the records that applied names: the run
// of this batch. It is computed from what was really applied, after the effect.
func (f *Fold) Run(applied func(i int) bool) []byte {
	run := make([]byte, 0, 16*len(f.seen))
	for _, e := range f.entries {
		if applied(f.lo + int(e.index)) {
			run = e.append(run)
		}
	}
	return run
}
