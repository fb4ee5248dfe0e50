package dedup

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"effectonce/internal/pgtx"
)

const plenty = int64(1) << 40

// heat makes segments look as if they had been asked about very often.
func heat(v *View, list ...*Segment) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, seg := range list {
		if v.warm[seg] == nil {
			v.warm[seg] = &warmth{}
		}
		v.warm[seg].hits = plenty
	}
}

func (w *world) readWhole(v *View, room int64) {
	w.t.Helper()
	if err := w.store.ReadWhole(w.t.Context(), w.conn, patient, v, room); err != nil {
		w.t.Fatal(err)
	}
}

// heldOf is how many of the view's segments are whole in memory.
func heldOf(v *View) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return len(v.held())
}

// TestWholeIsASet compares what is held with a map, under uniform keys and under
// keys that crowd around a few places, the zero and the last one among them.
func TestWholeIsASet(t *testing.T) {
	t.Parallel()
	rng := fixed(31, 32)
	for round := range 60 {
		all := keys(rng, 2+rng.IntN(3000))
		if round%2 == 0 {
			all = append(uniform(rng, 3000), slot{}, slot{^uint64(0), ^uint64(0)})
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		in, out := all[:len(all)/2], all[len(all)/2:]
		slices.SortFunc(in, slot.compare)
		w := newWhole(in)
		for _, k := range in {
			if !w.has(k) {
				t.Fatalf("round %d: %x is missing", round, k)
			}
		}
		for _, k := range out {
			if w.has(k) {
				t.Fatalf("round %d: %x is not in", round, k)
			}
		}
		if n := int64(16*len(w.keys) + 4*len(w.begin)); n != wholeBytes(int64(len(in))) {
			t.Errorf("%d bytes, reckoned %d", n, wholeBytes(int64(len(in))))
		}
	}
}

// scattered is a log whose keys lie in merged segments, in others and in runs: the
// multiples of three below 900, the zero key with them.
func scattered(t *testing.T) (w *world, v *View, want map[int]bool) {
	t.Helper()
	w = newWorld(t, 1)
	w.store.sizes = tiny
	v, want = w.load(0), map[int]bool{}
	for round := range 8 {
		var numbers []int
		for n := round; n < 300; n += 9 {
			numbers, want[3*n] = append(numbers, 3*n), true
		}
		w.write(v, 'a', numbers...)
		if round < 7 {
			w.seal(v)
		}
		if round == 4 {
			w.compact(v)
		}
	}
	w.clean(v)
	return w, v, want
}

// TestWholeSaysWhatPostgresSays: whichever segments are whole in memory, with and
// without the filters, every key gets the answer it gets without; all of them whole,
// nothing is asked.
func TestWholeSaysWhatPostgresSays(t *testing.T) {
	t.Parallel()
	w, v, want := scattered(t)
	rng := fixed(33, 34)
	if len(v.segments) < 4 {
		t.Fatalf("%d segments", len(v.segments))
	}
	for range 12 {
		v = w.load(0)
		if rng.IntN(2) == 0 {
			w.rebuild(v)
		}
		held := 0
		for _, seg := range v.segments {
			if rng.IntN(2) == 0 {
				heat(v, seg)
				held++
			}
		}
		w.readWhole(v, plenty)
		if heldOf(v) != held {
			t.Fatalf("%d segments are whole, want %d", heldOf(v), held)
		}
		w.knows(v, 900, want)
	}
	heat(v, v.segments...)
	w.readWhole(v, plenty)
	w.rebuild(v)
	var f Fold
	f.Reset(0)
	for n := range 900 {
		f.Add(fpOf(n))
	}
	sealed := int(v.Stats().Sealed)
	if open := f.Check(v); open != 0 || f.Confirmed != sealed || f.Asked < sealed {
		t.Errorf("%d keys are left to Postgres, %d of %d confirmed", open, f.Confirmed, f.Asked)
	}
	for n := range 900 {
		if f.Duplicate(n) != want[n] {
			t.Errorf("key %d: duplicate %v", n, f.Duplicate(n))
		}
	}
}

// TestHitsAreCounted: a segment is read whole because of what folds found in it, in
// Postgres; what they find in memory from then on counts as well.
func TestHitsAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	numbers := make([]int, 300)
	for i := range numbers {
		numbers[i] = i
	}
	w.write(v, 'a', numbers...)
	w.seal(v)
	seg := v.segments[0]
	for _, c := range []struct {
		hits  int64
		eager bool
	}{{60, false}, {120, true}} {
		w.known(v, numbers[:60]...)
		if v.warm[seg].hits != c.hits || v.Eager() != c.eager {
			t.Errorf("%d hits, eager %v, want %d and %v", v.warm[seg].hits, v.Eager(), c.hits, c.eager)
		}
	}
	w.readWhole(v, plenty)
	w.known(v, numbers[:60]...)
	if heldOf(v) != 1 || v.warm[seg].hits != 60 || v.Eager() {
		t.Errorf("%d held, %d hits, eager %v", heldOf(v), v.warm[seg].hits, v.Eager())
	}
}

// TestWholeNeedsEveryKey: blocks are missing or not what was written. A key that is
// missing in memory would be taken for new.
func TestWholeNeedsEveryKey(t *testing.T) {
	t.Parallel()
	for name, sql := range map[string]string{
		"the first block is missing": "DELETE FROM blocks b USING (SELECT first FROM blocks WHERE segment = $1 ORDER BY first LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first",
		"the last block is missing":  "DELETE FROM blocks b USING (SELECT first FROM blocks WHERE segment = $1 ORDER BY first DESC LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first",
		"all blocks are missing":     "DELETE FROM blocks WHERE segment = $1",
		"a key is missing":           "UPDATE blocks b SET fingerprints = substr(fingerprints, 17) FROM (SELECT first FROM blocks WHERE segment = $1 ORDER BY first LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first",
		"a key comes twice":          "UPDATE blocks b SET fingerprints = substr(fingerprints, 1, 16) || substr(fingerprints, 1, 16) || substr(fingerprints, 33) FROM (SELECT first FROM blocks WHERE segment = $1 ORDER BY first LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first",
	} {
		w, v, _ := scattered(t)
		w.Exec(t, "SET search_path TO "+w.Schema)
		seg := v.segments[1]
		w.Exec(t, sql, [16]byte(seg.ID))
		heat(v, seg)
		err := w.store.ReadWhole(t.Context(), w.conn, patient, v, plenty)
		if !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if heldOf(v) != 0 {
			t.Errorf("%s: it is held", name)
		}
		if v.Eager() {
			w.readWhole(v, plenty) // it must have as many hits again
		}
	}
}

// TestWholeWhileSegmentsChange: while a segment is read, somebody merges it: another
// member, who cleans up or not, or this view itself. What the view knows is exact,
// and nothing is kept of a segment that it has not any more.
func TestWholeWhileSegmentsChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		own, clean bool
	}{{"another's merge", false, false}, {"another's merge, cleaned up", false, true}, {"a merge of its own", true, false}} {
		for answers := range int64(3) {
			w, v, want := scattered(t)
			o := v
			if !c.own {
				o = w.load(0)
			}
			l := &late{before: func() {
				if c.own {
					inputs := choose(v.live(), nil, w.store.sizes) // Compact waits for its turn
					seg, err := w.store.merge(t.Context(), w.conn, patient, v, inputs)
					if err == nil {
						err = w.store.swap(t.Context(), w.conn, patient, v, &swap{segment: seg, dead: inputs})
					}
					if err != nil {
						t.Error(err)
					}
				} else {
					w.compact(o)
				}
				if c.clean {
					w.clean(o)
				}
			}}
			conn := w.through(func(c net.Conn) net.Conn {
				l.Conn = c
				return l
			})
			before := v.segments
			heat(v, before...)
			l.skip.Store(answers)
			l.armed.Store(true)
			err := w.store.ReadWhole(t.Context(), conn, patient, v, plenty)
			if l.armed.Load() {
				t.Fatalf("%s: nothing was merged", c.name)
			}
			if err != nil && (!c.clean || !errors.Is(err, ErrDropView)) {
				t.Errorf("%s behind answer %d: %v", c.name, answers, err)
			}
			for seg := range v.warm {
				if !slices.Contains(v.segments, seg) {
					t.Errorf("%s behind answer %d: a dead segment is kept", c.name, answers)
				}
			}
			switch {
			case c.own:
				w.knows(v, 900, want)
			case w.catchUp(v, 0) == nil:
				t.Errorf("%s: the view goes on with segments of before", c.name)
			}
			w.knows(w.load(0), 900, want)
		}
	}
}

// TestWholeDiesWithItsSegment: a compaction ends what was held of its inputs.
func TestWholeDiesWithItsSegment(t *testing.T) {
	t.Parallel()
	w, v, want := scattered(t)
	heat(v, v.segments...)
	w.readWhole(v, plenty)
	before := v.Stats().Whole
	merged := w.compact(v)
	if merged == 0 || heldOf(v) != len(v.segments)-1 || len(v.warm) != heldOf(v) || v.Stats().Whole >= before {
		t.Errorf("%d merged, %d of %d segments are whole, %d known of", merged, heldOf(v), len(v.segments), len(v.warm))
	}
	w.knows(v, 900, want)
}

// TestWholeAndADatabaseThatWentBack: the database loses a commit, its seal, or a seal
// alone, and the view holds the segment whole. The commit that rests on it compares
// the log's head: a lost commit's key is not a duplicate any more; a lost seal's is.
func TestWholeAndADatabaseThatWentBack(t *testing.T) {
	t.Parallel()
	for _, sealAlone := range []bool{false, true} {
		w, v := sealedWorld(t)
		back := w.backup()
		if !sealAlone {
			w.write(v, 'a', 4)
		}
		w.seal(v)
		w.rebuild(v)
		heat(v, v.segments...)
		w.readWhole(v, plenty)
		back()
		last := 3
		if !sealAlone {
			last = 4
			w.write(w.load(0), 'b', 5)
		}
		var f Fold
		f.Reset(0)
		f.Add(fpOf(last))
		if f.Check(v) != 0 || !f.Duplicate(0) {
			t.Fatal("the segment is not asked in memory: the test shows nothing")
		}
		err := w.append(t.Context(), w.conn, newRun(v, 'c'))
		if sealAlone != (err == nil) || !sealAlone && pgtx.Code(err) != pgtx.CodeLogMoved {
			t.Errorf("seal alone %v: a batch of duplicates: %v", sealAlone, err)
		}
		if err := w.catchUp(v, 0); !errors.Is(err, ErrDropView) {
			t.Errorf("seal alone %v: %v", sealAlone, err)
		}
		w.knows(w.load(0), 10, map[int]bool{1: true, 2: true, 3: true, 5: !sealAlone})
	}
}

// hitBy counts hits in segments as a fold does.
func hitBy(v *View, hits map[*Segment]int64) {
	var among []candidate
	for seg, n := range hits {
		among = append(among, candidate{seg: seg, hits: n})
	}
	v.hit(among)
}

// warmView is a view of segments of 6400 keys, and what can be read of them.
func warmView(n int) *View {
	v := newView(1, nil)
	for i := range n {
		v.segments = append(v.segments, &Segment{Keys: 6400, First: int64(i)})
	}
	return v
}

// read stands for ReadWhole: it holds what is worthy and returns their First.
func read(v *View, room int64) (out []int64) {
	for seg := v.worthy(room); seg != nil; seg = v.worthy(room) {
		v.hold(seg, &whole{})
		out = append(out, seg.First)
	}
	return out
}

// TestWorthy: a segment is read after enough hits, and while there is room; what is
// beyond the room goes, and what is not hit any more gives way.
func TestWorthy(t *testing.T) {
	t.Parallel()
	size := wholeBytes(6400)
	v := warmView(3)
	a, b, c := v.segments[0], v.segments[1], v.segments[2]
	step := func(what string, hits map[*Segment]int64, eager bool, room int64, want ...int64) {
		t.Helper()
		hitBy(v, hits)
		if v.Eager() != eager {
			t.Errorf("%s: eager %v", what, !eager)
		}
		if got := read(v, room); !slices.Equal(got, want) || v.Eager() {
			t.Errorf("%s: %v was read, want %v; eager %v", what, got, want, v.Eager())
		}
	}
	step("too few hits", map[*Segment]int64{a: 99}, false, plenty)
	step("no room", map[*Segment]int64{a: 1}, true, size-1)
	step("considered lately", map[*Segment]int64{a: 99}, false, size)
	step("room", map[*Segment]int64{a: 1}, true, size, 0)
	step("as many hits as what is held has", map[*Segment]int64{a: 90, b: 100}, true, size)
	step("the replay walks on", map[*Segment]int64{a: 49, b: 100}, true, size, 1)
	if heldOf(v) != 1 || v.warm[b].whole == nil {
		t.Error("what it took the room of is held")
	}
	step("room for all", map[*Segment]int64{a: 300, b: 300, c: 300}, true, 3*size, 0, 2)
	step("a segment that is held", map[*Segment]int64{a: 300}, false, 3*size)
	step("room for one", map[*Segment]int64{c: 20}, false, 2*size-1)
	if heldOf(v) != 1 || v.warm[c].whole == nil {
		t.Errorf("%d held with room for one", heldOf(v))
	}
	step("none", nil, false, -1)
	if heldOf(v) != 0 {
		t.Error("held without room")
	}
	step("once more", map[*Segment]int64{c: 200}, true, size, 2)
	if v.Forget(time.Now().Add(-time.Hour)); heldOf(v) != 1 {
		t.Error("forgotten though it was hit")
	}
	if v.Forget(time.Now()); heldOf(v) != 0 {
		t.Error("not forgotten")
	}
}

// TestRandomHitsDoNotTurnTheMemoryOver: old duplicates all over the history, and room
// for half of it. What is held stays.
func TestRandomHitsDoNotTurnTheMemoryOver(t *testing.T) {
	t.Parallel()
	rng := fixed(35, 36)
	for _, n := range []int{2, 8, 40} {
		v := warmView(n)
		room := int64(n/2) * wholeBytes(6400)
		reads := 0
		for range 4000 {
			hits := map[*Segment]int64{}
			for range 100 {
				hits[v.segments[rng.IntN(n)]]++
			}
			hitBy(v, hits)
			reads += len(read(v, room))
		}
		if reads > 2*n {
			t.Errorf("%d segments: %d were read", n, reads)
		}
	}
}

// TestAWalkIsFollowed: a replay goes through one segment after the other, with room
// for one, and most of its keys are found in memory.
func TestAWalkIsFollowed(t *testing.T) {
	t.Parallel()
	v := warmView(10)
	inMemory, all := 0, 0
	for _, seg := range v.segments {
		for range 64 {
			if v.warm[seg] != nil && v.warm[seg].whole != nil {
				inMemory++
			}
			all++
			hitBy(v, map[*Segment]int64{seg: 100})
			read(v, wholeBytes(6400))
		}
	}
	if inMemory < all*9/10 {
		t.Errorf("%d of %d batches were answered in memory", inMemory, all)
	}
}

// BenchmarkWhole measures a hit of sorted batches of 10,000.
func BenchmarkWhole(b *testing.B) {
	for _, n := range []int{1_000_000, 8_000_000} {
		rng := fixed(1, 1)
		all := uniform(rng, n)
		w := newWhole(all)
		batch := make([]slot, 1_000_000)
		for i := range batch {
			batch[i] = all[rng.IntN(n)]
		}
		for part := range slices.Chunk(batch, 10_000) {
			slices.SortFunc(part, slot.compare)
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for i := range b.N {
				if !w.has(batch[i%len(batch)]) {
					b.Fatal("missing")
				}
			}
		})
	}
}
