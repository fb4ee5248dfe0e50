package dedup

import (
	"cmp"
	"slices"
)

// question is a key that the exact set and the gate cannot decide.
type question struct {
	slot
	group int32
	asked bool // a segment may have it
}

// candidate is a segment of the view that it may lie in.
type candidate struct {
	seg    *Segment
	filter *Filter // nil: it must be asked
	whole  *whole  // nil mostly
	order  int64   // of those that are whole, the hits
	hits   int64   // keys that lie in it and were not counted yet
}

// pair is a question to one segment.
type pair struct {
	slot
	group int32
	among int32 // index of the candidate
}

// candidates appends the view's segments, with mu held: first those that are whole,
// by their hits.
func (v *View) candidates(list []candidate) []candidate {
	for _, seg := range v.segments {
		c := candidate{seg: seg, filter: seg.filter, order: -1}
		if w := v.warm[seg]; w != nil && w.whole != nil {
			c.whole, c.order = w.whole, w.hits
		}
		list = append(list, c)
	}
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(b.order, a.order) })
	return list
}

// narrow decides of the open keys what can be decided without Postgres. A key that a
// whole segment has is in a run that the view contains. One that a whole segment has
// not, or that a filter knows not to be there, may be in the others still: only
// where none is left it is new.
func (f *Fold) narrow() {
	everywhere := false // a segment has neither: all are asked about what is left
	for i := range f.among {
		c := &f.among[i]
		everywhere = everywhere || c.whole == nil && c.filter == nil
		if c.whole == nil {
			continue
		}
		f.open = slices.DeleteFunc(f.open, func(q question) bool {
			// The first has most of what a replay repeats; of the others, filters know
			// more quickly what they have not.
			if i > 0 && c.filter != nil && !c.filter.has(q.slot) || !c.whole.has(q.slot) {
				return false
			}
			f.seen[q.group] = true
			c.hits++
			return true
		})
	}
	if f.Confirmed = f.Asked - len(f.open); f.Confirmed > 0 {
		f.view.hit(f.among)
	}
	f.pairs = f.pairs[:0]
	if everywhere {
		return
	}
	for i := range f.among {
		if f.among[i].whole != nil {
			continue
		}
		for n := range f.open {
			if q := &f.open[n]; f.among[i].filter.has(q.slot) {
				q.asked = true
				f.pairs = append(f.pairs, pair{q.slot, q.group, int32(i)})
			}
		}
	}
	f.open = slices.DeleteFunc(f.open, func(q question) bool { return !q.asked })
}
