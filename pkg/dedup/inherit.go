package dedup

import (
	"bytes"
	"slices"

	"effectonce/pkg/stream"
)

// era names what has expired from a log: it is the part of a manifest that a seal and
// a merge hand on, and that every other change draws anew.
func era(manifest stream.UUID) [8]byte { return [8]byte(manifest[8:]) }

// inherit takes what old knows about segments into this view, which nobody else has
// yet: the filters of segments that old had too and what memory has of them whole, and
// its gate. ancestor says that old
// has the runs of this log up to its head.
//
// What the gate then holds: every key of old's segments, and, added here, of its
// exact set: of all its runs, but for what had expired from them. So it holds every
// key of a segment
//
//   - that old had too: a segment never changes;
//   - of runs of old's exact set alone;
//   - of runs up to old's head, whoever sealed and merged them, if the same had
//     expired as for old. (A database that went back may have made a segment live
//     again whose keys old's gate has never seen.)
//
// Other segments are outside, and Rebuild reads them.
//
// The gate is taken out of old: what works on old in the background adds to old's
// filters alone, and only as long as they are old's.
func (v *View) inherit(old *View, ancestor bool) {
	select {
	case old.task <- struct{}{}: // nobody works on it
		v.offered, old.offered = old.offered, offered{}
		<-old.task
	default:
	}
	old.copying.Lock()
	defer old.copying.Unlock()
	old.mu.Lock()
	defer old.mu.Unlock()
	had := make(map[stream.UUID]*Segment, len(old.segments))
	for _, seg := range old.segments {
		had[seg.ID] = seg
	}
	if renewed(had, v.segments) {
		return
	}
	gate := old.gate
	whole := gate != nil && era(v.manifest) == era(old.manifest)
	if gate == nil {
		gate = old.base
	}
	old.heir = v
	var inside, outside, exact int64 // keys
	for _, seg := range v.segments {
		before := had[seg.ID]
		switch {
		case before != nil:
			seg.filter, seg.outside = before.filter, before.outside
			if warm := old.warm[before]; warm != nil {
				kept := *warm
				v.warm[seg] = &kept
			}
		case ancestor && seg.Last <= old.Head && (whole || seg.First > old.sealed):
		default:
			seg.outside = true
		}
		if seg.outside {
			outside += seg.Keys
		} else {
			inside += seg.Keys
		}
	}
	if gate == nil || inside == 0 {
		return
	}
	old.gate, old.base = nil, nil
	if old.building == gate {
		old.building, old.ready = nil, 0
	}
	for _, g := range []*generation{old.fresh, old.sealing} {
		if g != nil {
			g.keys.each(gate.add)
			exact += int64(g.keys.n)
		}
	}
	gate.gone = max(gate.gone, gate.n-inside-outside-exact) // others saw them expire
	if outside == 0 {
		v.gate = gate
	} else {
		v.base = gate
	}
}

// bequeath gives what a rebuild of v has made to the view that was loaded in its place
// meanwhile, or in that one's: the filters, and the gate where that view has nothing
// better. It holds every key of the segments that v had, which never change.
//
// A segment that the heir is making just now, or has sent and not heard of, would have
// its keys in no gate: it was covered when there was none. The gate is lost then.
func (v *View) bequeath(r *rebuilding) {
	h := v.heir
	h.mu.Lock()
	for h.heir != nil {
		next := h.heir
		next.mu.Lock()
		h.mu.Unlock()
		h = next
	}
	defer h.mu.Unlock()
	had := make(map[stream.UUID]*Segment, len(r.segments))
	for _, seg := range r.segments {
		had[seg.ID] = seg
	}
	for _, seg := range h.segments {
		if before := had[seg.ID]; before != nil && seg.filter == nil {
			seg.filter = before.filter
		}
	}
	select {
	case h.task <- struct{}{}:
		defer func() { <-h.task }()
	default:
		return
	}
	if r.good || h.pending != nil || len(h.gates()) > 0 {
		return
	}
	whole := true
	for _, seg := range h.segments {
		seg.outside = had[seg.ID] == nil
		whole = whole && !seg.outside
	}
	if whole {
		h.gate = r.gate
	} else {
		h.base = r.gate
	}
}

// renewed reports whether a segment's digest is another than it was: a filter may
// have been believed for one that was wrong, also in the gate.
func renewed(had map[stream.UUID]*Segment, segments []*Segment) bool {
	return slices.ContainsFunc(segments, func(seg *Segment) bool {
		before := had[seg.ID]
		return before != nil && !bytes.Equal(before.Digest, seg.Digest)
	})
}
