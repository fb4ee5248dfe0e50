package dedup

import "testing"

// A batch is checked; its keys are to be looked up in segments. Before the look-up
// these segments are merged: the statement runs under the new manifest, which the
// view has by then, and finds no live segment of those it was asked about. Taken
// for an answer, that made duplicates new.
func TestLookUpAcrossAMerge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	var all []int
	for i := range 8 {
		w.write(v, 'a', 10*i, 10*i+1)
		w.seal(v)
		all = append(all, 10*i, 10*i+1)
	}
	for name, meanwhile := range map[string]func(){
		"a merge": func() {
			if n := w.compact(v); n != 8 {
				t.Fatalf("%d segments merged, want 8", n)
			}
		},
		"a seal": func() {
			w.write(v, 'b', 999)
			w.seal(v)
		},
	} {
		var f Fold
		f.Reset(0)
		for _, n := range all {
			f.Add(fpOf(n))
		}
		if f.Check(v) != len(all) {
			t.Fatal("memory decided about sealed keys")
		}
		meanwhile()
		if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil {
			t.Fatal(err)
		}
		if f.Open() { // a refusal is right, a guess is not
			continue
		}
		for i, n := range all {
			if !f.Duplicate(i) {
				t.Errorf("%s: key %d is taken for new", name, n)
			}
		}
	}
	w.knows(v, 100, map[int]bool{0: true, 1: true, 10: true, 11: true, 20: true, 21: true, 30: true, 31: true,
		40: true, 41: true, 50: true, 51: true, 60: true, 61: true, 70: true, 71: true})
}
