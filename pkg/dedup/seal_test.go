package dedup

import (
	"errors"
	"maps"
	"slices"
	"testing"
	"time"
)

func (w *world) seal(v *View) {
	w.t.Helper()
	if _, err := w.store.Seal(w.t.Context(), w.conn, patient, v); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) compact(v *View) int {
	w.t.Helper()
	n, err := w.store.Compact(w.t.Context(), w.conn, patient, v, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

func (w *world) rebuild(v *View) {
	w.t.Helper()
	if err := w.store.Rebuild(w.t.Context(), w.conn, patient, v, nil); err != nil {
		w.t.Fatal(err)
	}
}

// clean removes everything that can be removed.
func (w *world) clean(v *View) int64 {
	w.t.Helper()
	total := int64(0)
	for {
		n, err := w.store.Clean(w.t.Context(), w.conn, patient, v.Log)
		if err != nil {
			w.t.Fatal(err)
		}
		if total += n; n == 0 {
			return total
		}
	}
}

// fpOf is the fingerprint of a number, as fps writes it.
func fpOf(n int) Fingerprint { return Fingerprint(fps(n)) }

// known asks as a committer does: which of the numbers are duplicates. The view may
// have to take a manifest of its own first.
func (w *world) known(v *View, numbers ...int) map[int]bool {
	w.t.Helper()
	var f Fold
	f.Reset(0)
	for _, n := range numbers {
		f.Add(fpOf(n))
	}
	for tries := 0; f.Check(v) > 0; tries++ {
		if err := w.store.LookUp(w.t.Context(), w.conn, patient, &f); err != nil {
			w.t.Fatal(err)
		}
		if !f.Open() {
			break
		}
		if tries > 0 {
			w.t.Fatal("the log's segments are not the view's")
		}
	}
	out := map[int]bool{}
	for i, n := range numbers {
		out[n] = f.Duplicate(i)
	}
	return out
}

// knows fails unless the view knows exactly the numbers of [0, below) that are in want.
func (w *world) knows(v *View, below int, want map[int]bool) {
	w.t.Helper()
	var numbers []int
	for n := range below {
		numbers = append(numbers, n)
	}
	got := w.known(v, numbers...)
	for n, dup := range got {
		if dup != want[n] {
			w.t.Errorf("key %d: duplicate %v, want %v", n, dup, want[n])
		}
	}
}

// TestSealedKeysAreKnown follows keys on their way from runs to segments to larger
// segments: the view that does it, one that is loaded at each stage, and one whose
// filters are rebuilt, know exactly these keys.
func TestSealedKeysAreKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	v, other := w.load(0), w.load(1)
	w.write(other, 'x', 1) // another log's segments are not ours
	w.seal(other)
	want := map[int]bool{}
	everywhere := func() {
		t.Helper()
		w.knows(v, 1500, want)
		loaded := w.load(0)
		w.knows(loaded, 1500, want)
		w.rebuild(loaded)
		if s := loaded.Stats(); s.Rebuild || s.Ready != 1 {
			t.Errorf("after a rebuild: %+v", s)
		}
		w.knows(loaded, 1500, want)
	}
	for round := range 9 {
		for run := range 3 {
			var numbers []int
			for i := range 45 {
				n := round*150 + run*50 + i + 2
				numbers, want[n] = append(numbers, n), true
			}
			w.write(v, 'a', numbers...)
		}
		w.write(v, 'a') // a batch of duplicates only
		w.seal(v)
		if n := v.Keys(); n != 0 {
			t.Fatalf("%d keys are left in the exact set", n)
		}
		if round%4 == 0 {
			everywhere()
		}
		w.clean(v)
	}
	everywhere()
	if n := w.compact(v); n != 8 {
		t.Fatalf("%d segments merged, want 8", n)
	}
	everywhere()
	if n := w.clean(v); n == 0 {
		t.Error("nothing to clean up behind a compaction")
	}
	everywhere()
	if s := v.Stats(); !slices.Equal(s.Tiers, []int{1, 1}) || s.Sealed != int64(len(want)) || s.Keys != 0 || s.Runs != 0 {
		t.Errorf("%+v", s)
	}
	if n := w.compact(v); n != 0 {
		t.Errorf("%d segments merged, want none", n)
	}
	w.knows(other, 1500, map[int]bool{1: true})
	w.whole()
}

// whole fails unless every live segment is what its row says: sorted blocks, all
// keys, a filter that knows them and the digest of its image.
func (w *world) whole() {
	w.t.Helper()
	for part := range 2 {
		v := w.load(int32(part))
		digests := map[string]int{}
		for _, seg := range v.segments {
			digests[string(seg.Digest)]++
		}
		w.rebuild(v)
		for _, seg := range v.segments {
			image, err := seg.filter.MarshalBinary()
			if err != nil {
				w.t.Fatal(err)
			}
			digest := Digest(image)
			if digests[string(digest[:])]--; digests[string(digest[:])] < 0 {
				w.t.Errorf("segment %s: the digest is of another filter", seg.ID)
			}
			w.sorted(seg)
		}
	}
}

func (w *world) sorted(seg *Segment) {
	w.t.Helper()
	src := &source{store: w.store, seg: seg}
	for !src.done {
		if err := src.next(w.t.Context(), w.conn, patient); err != nil {
			w.t.Fatal(err)
		}
		if !src.done && !seg.filter.has(src.key) {
			w.t.Errorf("segment %s: key %x does not pass the filter", seg.ID, src.key)
		}
	}
	var blocks int64
	var small int
	if err := w.Owner.QueryRow(w.t.Context(), `SELECT count(*), count(*) FILTER (WHERE octet_length(fingerprints) < 4000)
		FROM `+w.Relation("blocks")+" WHERE segment = $1", [16]byte(seg.ID)).Scan(&blocks, &small); err != nil {
		w.t.Fatal(err)
	}
	if blocks != seg.Blocks || small > 1 {
		w.t.Errorf("segment %s: %d blocks, %d of them small, the row says %d", seg.ID, blocks, small, seg.Blocks)
	}
}

// TestSealOfRunsWithoutKeys: duplicates only. Nothing is written, sealed moves.
func TestSealOfRunsWithoutKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	w.seal(v) // nothing at all
	w.write(v, 'a')
	w.write(v, 'a')
	w.seal(v)
	if s := v.Stats(); s.Segments != 0 || s.Runs != 0 {
		t.Errorf("%+v", s)
	}
	w.write(v, 'a', 7)
	fresh := w.load(0)
	if diff := same(v, fresh); diff != "" || fresh.sealed != 2 {
		t.Errorf("sealed %d: %s", fresh.sealed, diff)
	}
	w.seal(v)
	w.knows(v, 10, map[int]bool{7: true})
	w.knows(w.load(0), 10, map[int]bool{7: true})
}

// TestLearnWhileSealing: what is committed between the beginning and the end of a
// seal stays in the exact set; what was sealed does not.
func TestLearnWhileSealing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	w.write(v, 'a', 1, 2)
	g := v.freeze()
	w.write(v, 'a', 3)
	if g != v.freeze() {
		t.Error("a generation on its way was replaced")
	}
	w.knows(v, 6, map[int]bool{1: true, 2: true, 3: true})
	w.seal(v)
	if !maps.Equal(contents(v), map[slot]bool{slotAt(fps(3)): true}) || v.Stats().Runs != 1 {
		t.Errorf("exact set %v, %+v", contents(v), v.Stats())
	}
	w.knows(v, 6, map[int]bool{1: true, 2: true, 3: true})
	w.seal(v)
	w.knows(w.load(0), 6, map[int]bool{1: true, 2: true, 3: true})
}

// TestBusy: members that tend one log do not build the same segment twice, if one has
// just begun. What was begun and given up, or long ago, stands in nobody's way.
func TestBusy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.store.sizes = tiny
	w.store.sizes.alone = time.Hour
	v, o := w.load(0), w.load(0)
	w.write(v, 'a', 1, 2)
	if err := w.catchUp(o, 0); err != nil {
		t.Fatal(err)
	}
	build := func() *Segment {
		t.Helper()
		g := v.freeze()
		seg, err := w.store.write(t.Context(), w.conn, patient, v, g.keys.sorted(), g.head)
		if err != nil {
			t.Fatal(err)
		}
		return seg
	}
	busy := func(when string, want error) {
		t.Helper()
		n, err := w.store.Seal(t.Context(), w.conn, patient, o)
		if !errors.Is(err, want) || (n > 0) != (want == nil) {
			t.Errorf("%s: %d keys, %v", when, n, err)
		}
		w.knows(o, 5, map[int]bool{1: true, 2: true})
	}
	seg := build()
	busy("another member builds", ErrBusy)
	var rows int
	if err := w.Owner.QueryRow(t.Context(), "SELECT count(*) FROM "+w.Relation("segments")).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d segments, %v", rows, err)
	}
	other := w.load(1)
	w.write(other, 'x', 9)
	w.seal(other) // another log is not this one
	if err := w.store.discard(t.Context(), w.conn, patient, seg); err != nil {
		t.Fatal(err)
	}
	seg = build()
	busy("and once more", ErrBusy)
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET created_at = now() + interval '61 minutes' WHERE id = $1", seg.ID)
	if _, err := w.store.register(t.Context(), w.conn, patient, o, &Segment{First: 1, Last: 1}, 2); err != nil {
		t.Errorf("by a clock that was ahead: %v", err)
	}
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET created_at = now() - interval '61 minutes' WHERE state = 'building'")
	busy("it died long ago", nil)
}
