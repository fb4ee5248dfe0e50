package dedup

import (
	"fmt"
	"slices"
	"testing"
)

// shelvesOf returns the shelf of each live segment by tier, -1 for none.
func shelvesOf(v *View) map[int][]int {
	found := map[int][]int{}
	for _, seg := range v.live() {
		shelf := -1
		if n, ok := shelfOf(seg.ID); ok {
			shelf = int(n)
		}
		found[seg.Tier] = append(found[seg.Tier], shelf)
	}
	return found
}

// blocksOn counts the blocks by table.
func (w *world) blocksOn() map[string]int {
	w.t.Helper()
	rows, err := w.Owner.Query(w.t.Context(), "SELECT c.relname, count(*) FROM "+w.Relation("blocks")+" b JOIN pg_class c ON c.oid = b.tableoid GROUP BY 1")
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	found := map[string]int{}
	for rows.Next() {
		var name string
		var n int
		if err := rows.Scan(&name, &n); err != nil {
			w.t.Fatal(err)
		}
		found[name] = n
	}
	return found
}

// sealed appends and seals a run of count keys.
func (w *world) sealed(v *View, id byte, from, count int) {
	w.t.Helper()
	numbers := make([]int, count)
	for i := range numbers {
		numbers[i] = from + i
	}
	w.write(v, id, numbers...)
	w.seal(v)
}

// TestShelfEmptiesAtOnce: the segments of a merge lie on one shelf, on which nothing
// else is put until they are cleaned up, and what will not be merged lies on none.
func TestShelfEmptiesAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	w.store.sizes.merge, w.store.sizes.segment = 3, 100
	v := w.load(0)
	for i := range 4 {
		w.sealed(v, byte(i+1), 10*i, 10)
	}
	got := shelvesOf(v)[0]
	if got[0] < 0 || got[1] != got[0] || got[2] != got[0] || got[3] < 0 || got[3] == got[0] {
		t.Fatalf("three to be merged, and one that is not: %v", got)
	}
	if n := w.compact(v); n != 3 {
		t.Fatalf("merged %d", n)
	}
	merged := shelvesOf(v)[1]
	if merged[0] < 0 || slices.Contains(got, merged[0]) {
		t.Fatalf("merged to shelf %v, from %v", merged, got)
	}
	// Dead blocks are still there: the next of their tier go elsewhere.
	w.sealed(v, 5, 40, 10)
	w.sealed(v, 6, 50, 10)
	w.sealed(v, 7, 60, 10)
	if again := shelvesOf(v)[0]; again[1] != got[3] || again[2] != got[3] || again[3] == got[0] {
		t.Fatalf("sealed to %v while %v is not cleaned up", again, got[0])
	}
	w.clean(v)
	if n := w.blocksOn()[fmt.Sprint("blocks_shelf_", got[0])]; n != 0 {
		t.Errorf("%d blocks left on shelf %d", n, got[0])
	}
	// 60 keys are more than half a segment.
	w.compact(v)
	w.sealed(v, 8, 70, 60)
	if last := shelvesOf(v)[0]; last[len(last)-1] != -1 || w.blocksOn()["blocks_kept"] != 20 {
		t.Errorf("a segment that stays lies on a shelf: %v, %v", last, w.blocksOn())
	}
	w.clean(v)
	want := map[int]bool{}
	for n := range 130 {
		want[n] = true
	}
	w.knows(w.load(0), 200, want)
}

// TestNoShelfLeft: a segment is written all the same.
func TestNoShelfLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t, shelves+2)
	w.store.sizes = tiny
	var used []int
	var views []*View
	for n := range int32(shelves + 2) {
		v := w.load(n)
		w.sealed(v, byte(n+1), 10*int(n), 10)
		used, views = append(used, shelvesOf(v)[0]...), append(views, v)
	}
	slices.Sort(used)
	if want := []int{-1, -1, 0, 1, 2, 3, 4, 5, 6, 7}; !slices.Equal(used, want) {
		t.Errorf("logs on shelves %v, want %v", used, want)
	}
	// What lies together stays together, also on none.
	last := views[len(views)-1]
	w.sealed(last, 99, 1000, 10)
	if got := shelvesOf(last)[0]; got[0] != -1 || got[1] != -1 {
		t.Errorf("sealed to %v", got)
	}
}

// TestPack: which segments are merged with each other.
func TestPack(t *testing.T) {
	t.Parallel()
	z := sizes{merge: 3, segment: 100}
	for _, c := range []struct {
		keys []int64
		want []int
	}{
		{nil, nil},
		{[]int64{1}, []int{1}},
		{[]int64{1, 1, 1}, []int{3}},
		{[]int64{1, 1, 1, 1}, []int{3, 1}},
		{[]int64{50, 50, 50}, []int{2, 1}},
		{[]int64{100, 1, 1, 100, 1}, []int{1, 2, 1, 1}},
		{[]int64{101, 101}, []int{1, 1}},
	} {
		var list []*Segment
		for i, n := range c.keys {
			list = append(list, &Segment{Keys: n, First: int64(i)})
		}
		slices.Reverse(list)
		var got []int
		next := int64(0)
		for _, p := range pack(list, z) {
			got = append(got, len(p))
			for _, seg := range p {
				if seg.First != next {
					t.Errorf("%v: out of order", c.keys)
				}
				next++
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v: packs of %v, want %v", c.keys, got, c.want)
		}
	}
}
