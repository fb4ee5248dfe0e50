package dedup

import (
	"cmp"
	"context"
	"errors"
	"math/bits"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
)

// whole is all keys of a segment, in memory. It never changes.
type whole struct {
	keys  []slot   // sorted
	begin []uint32 // where the keys of each part of the key space begin, and their number
}

// wholeBytes is the memory of a segment with so many keys.
func wholeBytes(keys int64) int64 { return 16*keys + 4*(keys/aPart+2) }

// aPart is how many keys lie in a part on average: fingerprints are uniform.
const aPart = 8

func (w *whole) part(k slot) uint64 {
	hi, _ := bits.Mul64(k.hi, uint64(len(w.begin)-1))
	return hi
}

func (w *whole) has(k slot) bool {
	part := w.part(k)
	from, to := w.begin[part], w.begin[part+1]
	for from < to {
		if at := (from + to) / 2; w.keys[at].less(k) {
			from = at + 1
		} else {
			to = at
		}
	}
	return from < w.begin[part+1] && w.keys[from] == k
}

// newWhole takes the sorted keys.
func newWhole(keys []slot) *whole {
	w := &whole{keys: keys, begin: make([]uint32, len(keys)/aPart+2)}
	at := 0
	for part := range w.begin {
		for at < len(keys) && w.part(keys[at]) < uint64(part) {
			at++
		}
		w.begin[part] = uint32(at)
	}
	return w
}

// warmth is what memory knows of a segment's use.
type warmth struct {
	hits  int64     // keys found in it since the counting began
	at    time.Time // the last of them
	whole *whole    // nil mostly
}

// A look-up of a key in Postgres costs about as much as reading 64 keys of its
// segment. So one that had as many hits is worth reading whole. Where memory is
// short, others make room for it if they had less than half as many a key since the
// counting began: a replay has walked on from these. Old duplicates at random never
// make that difference, so they do not turn the memory over.
const (
	worthReading = 64
	leastHits    = 100 // below, a segment is not worth a statement
	rival        = 2
)

func enough(keys int64) int64 { return max(keys/worthReading, leastHits) }

// density is the hits a key.
func (w *warmth) density(seg *Segment) float64 { return float64(w.hits) / float64(seg.Keys) }

// hit counts the keys found in segments, which may be gone by now. The counting
// begins anew when a segment had enough: ReadWhole sees to that if it is to be read.
func (v *View) hit(among []candidate) {
	v.mu.Lock()
	defer v.mu.Unlock()
	now, over := time.Now(), false
	for i := range among {
		c := &among[i]
		n := c.hits
		c.hits = 0
		if n == 0 || !slices.Contains(v.segments, c.seg) {
			continue
		}
		w := v.warm[c.seg]
		if w == nil {
			w = &warmth{}
			v.warm[c.seg] = w
		}
		w.hits += n
		w.at = now
		if w.hits >= enough(c.seg.Keys) {
			over, v.eager = true, v.eager || w.whole == nil
		}
	}
	if over && !v.eager {
		v.recount()
	}
}

func (v *View) recount() {
	for _, w := range v.warm {
		w.hits = 0
	}
}

// Eager reports whether a segment had so many hits that ReadWhole should be called.
func (v *View) Eager() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.eager
}

// ReadWhole reads into memory, whole, segments that had many hits lately, so that a
// replay that walks through one asks memory instead of Postgres. The view's whole
// segments take room bytes at most, all together; what it holds beyond is let go,
// fewest hits first. Errors are those of Compact; after one the view is as exact as
// before.
func (s *Store) ReadWhole(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, room int64) error {
	done, err := v.background(ctx)
	if err != nil {
		return err
	}
	defer done()
	for seg := v.worthy(room); seg != nil; seg = v.worthy(room) {
		keys, err := s.allKeys(ctx, conn, set, seg)
		if short, ok := errors.AsType[*shortError](err); ok {
			err = s.recount(ctx, conn, set, v, short.seg)
		}
		if err != nil {
			return err
		}
		v.hold(seg, newWhole(keys))
	}
	return nil
}

// allKeys reads a segment's keys: every one, and in order. What is missing would
// be taken for new.
func (s *Store) allKeys(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, seg *Segment) ([]slot, error) {
	keys := make([]slot, 0, seg.Keys)
	src := &source{store: s, seg: seg}
	for {
		if err := src.next(ctx, conn, set); err != nil {
			return nil, err
		}
		if src.done {
			return keys, nil
		}
		keys = append(keys, src.key)
	}
}

// hold keeps a segment's keys, if the segment is still the view's.
func (v *View) hold(seg *Segment, keys *whole) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if w := v.warm[seg]; w != nil && slices.Contains(v.segments, seg) {
		w.whole = keys
	}
}

// worthy returns the next segment to read whole, nil if there is none, and lets go
// of those that make room for it.
func (v *View) worthy(room int64) *Segment {
	v.mu.Lock()
	defer v.mu.Unlock()
	held, free := v.held(), room
	for _, seg := range held {
		free -= wholeBytes(seg.Keys)
	}
	for len(held) > 0 && free < 0 {
		free += v.letGo(held[0])
		held = held[1:]
	}
	for _, seg := range v.segments {
		w := v.warm[seg]
		if w == nil || w.whole != nil || w.hits < enough(seg.Keys) {
			continue
		}
		size, n, gain := wholeBytes(seg.Keys), 0, int64(0)
		for free+gain < size && n < len(held) && rival*v.warm[held[n]].density(held[n]) < w.density(seg) {
			gain += wholeBytes(held[n].Keys)
			n++
		}
		if free+gain < size {
			continue
		}
		for _, old := range held[:n] {
			v.letGo(old)
		}
		return seg
	}
	if v.eager {
		v.eager = false
		v.recount()
	}
	return nil
}

// held returns the segments that are whole in memory, those with the fewest hits a
// key first.
func (v *View) held() []*Segment {
	var held []*Segment
	for seg, w := range v.warm {
		if w.whole != nil {
			held = append(held, seg)
		}
	}
	slices.SortFunc(held, func(a, b *Segment) int {
		return cmp.Or(cmp.Compare(v.warm[a].density(a), v.warm[b].density(b)), v.warm[a].at.Compare(v.warm[b].at))
	})
	return held
}

func (v *View) letGo(seg *Segment) int64 {
	v.warm[seg].whole = nil
	return wholeBytes(seg.Keys)
}

// Forget lets go of all whole segments if none had a hit since.
func (v *View) Forget(since time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	held := v.held()
	if slices.ContainsFunc(held, func(seg *Segment) bool { return v.warm[seg].at.After(since) }) {
		return
	}
	for _, seg := range held {
		v.letGo(seg)
	}
}
