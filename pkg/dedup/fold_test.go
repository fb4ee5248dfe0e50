package dedup

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// model is the fold as one would write it without thinking of speed. Record i has
// keys[i−lo]; nil has no key.
type model struct {
	lo   int
	keys []*Fingerprint
	view map[Fingerprint]bool
}

func (m *model) winners(lo, hi int, skip, applied func(int) bool) []int {
	taken := map[Fingerprint]bool{}
	for i := range m.keys {
		if k := m.keys[i]; k != nil && applied != nil && applied(m.lo+i) {
			taken[*k] = true
		}
	}
	var picks []int
	for i := lo; i < hi; i++ {
		k := m.keys[i-m.lo]
		if skip(i) || applied != nil && applied(i) || k != nil && (m.view[*k] || taken[*k]) {
			continue
		}
		if k != nil {
			taken[*k] = true
		}
		picks = append(picks, i)
	}
	return picks
}

func (m *model) run(applied func(int) bool) []byte {
	var fps []Fingerprint
	for i, k := range m.keys {
		if k != nil && applied(m.lo+i) {
			fps = append(fps, *k)
		}
	}
	slices.SortFunc(fps, Fingerprint.Compare)
	run := []byte{}
	for _, fp := range fps {
		run = append(run, fp[:]...)
	}
	return run
}

func at(flags []bool) func(int) bool { return func(i int) bool { return flags[i] } }

// batch fills the fold and the model with random records: few different keys, so
// that they repeat, some without one, some in the view.
func batch(rng *rand.Rand, f *Fold) (*model, *View) {
	n := rng.IntN(60)
	m := &model{lo: rng.IntN(5), view: map[Fingerprint]bool{}}
	v := newView(0, nil)
	f.Reset(m.lo)
	for range n {
		if rng.IntN(8) == 0 {
			m.keys = append(m.keys, nil)
			f.AddKeyless()
			continue
		}
		var fp Fingerprint
		fp[0], fp[15] = byte(rng.IntN(5)), byte(rng.IntN(4))
		if !m.view[fp] && rng.IntN(10) == 0 {
			m.view[fp] = true
			v.LearnKeys(fp[:])
		}
		m.keys = append(m.keys, &fp)
		f.Add(fp)
	}
	f.Check(v)
	return m, v
}

// TestFoldIsTheModel walks through what a committer does: winners, some of them
// refused, others promoted, some applied, a partition left out, and the run of
// what was applied at last.
func TestFoldIsTheModel(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	var f Fold // one for all batches, as in a committer
	promoted := 0
	for round := range 1000 {
		m, v := batch(rng, &f)
		n := m.lo + len(m.keys)
		dead, applied := make([]bool, n), make([]bool, n)
		for i := m.lo; i < n; i++ {
			if k := m.keys[i-m.lo]; f.Duplicate(i) != (k != nil && m.view[*k]) {
				t.Fatalf("round %d: Duplicate(%d) = %v", round, i, f.Duplicate(i))
			}
			dead[i] = rng.IntN(10) == 0
		}
		for range 4 {
			lo, hi := m.lo, n
			if rng.IntN(3) == 0 && n > m.lo { // isolation bisects
				lo = m.lo + rng.IntN(n-m.lo)
				hi = lo + rng.IntN(n-lo+1)
			}
			var before func(int) bool
			if rng.IntN(2) == 0 {
				before = at(applied)
			}
			picks := f.Winners([]int{-7}, lo, hi, at(dead), before)
			if diff := cmp.Diff(append([]int{-7}, m.winners(lo, hi, at(dead), before)...), picks); diff != "" {
				t.Fatalf("round %d: winners (-want +got):\n%s", round, diff)
			}
			for _, i := range picks[1:] {
				switch {
				case before == nil: // asked only; one is refused
				case rng.IntN(4) == 0:
					dead[i] = true
					promoted++
				default:
					applied[i] = true
				}
			}
		}
		run := f.Run(at(applied))
		if diff := cmp.Diff(m.run(at(applied)), run); diff != "" {
			t.Fatalf("round %d: run (-want +got):\n%s", round, diff)
		}
		strictlyRising(t, run)
		f.Check(v) // after "log moved" a batch is checked once more
		if diff := cmp.Diff(m.winners(m.lo, n, at(dead), nil), f.Winners(nil, m.lo, n, at(dead), nil)); diff != "" {
			t.Fatalf("round %d: winners after a second check:\n%s", round, diff)
		}
	}
	if promoted == 0 {
		t.Error("no winner was ever refused: the test shows nothing")
	}
}

// strictlyRising: a run is sorted and has no key twice; nil would mean sealed.
func strictlyRising(t *testing.T, run []byte) {
	t.Helper()
	if run == nil {
		t.Fatal("a run without keys must be empty, not nil")
	}
	for i := 16; i < len(run); i += 16 {
		if Fingerprint(run[i-16:]).Compare(Fingerprint(run[i:])) >= 0 {
			t.Fatalf("not sorted, or a key twice: %x", run)
		}
	}
}

// TestFoldPromotes: the failure story of "effect before run". The first copy of a
// key is refused; the run must carry the key of the copy that was applied, and a
// key of which no copy was applied must not be in it.
func TestFoldPromotes(t *testing.T) {
	t.Parallel()
	a, b := Fingerprint{1}, Fingerprint{0, 1}
	var f Fold
	f.Reset(10)
	for _, fp := range []Fingerprint{a, b, a, b} {
		f.Add(fp)
	}
	f.Check(newView(0, nil))
	dead := make([]bool, 14)
	if diff := cmp.Diff([]int{10, 11}, f.Winners(nil, 10, 14, at(dead), nil)); diff != "" {
		t.Error(diff)
	}
	dead[10], dead[11], dead[13] = true, true, true
	if diff := cmp.Diff([]int{12}, f.Winners(nil, 10, 14, at(dead), nil)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(a[:], f.Run(func(i int) bool { return i == 12 })); diff != "" {
		t.Error(diff)
	}
}

// TestFoldSortsByKeyThenOffset: the first of a key in offset order wins, also
// where keys differ in their last bytes only.
func TestFoldSortsByKeyThenOffset(t *testing.T) {
	t.Parallel()
	var f Fold
	f.Reset(0)
	for i := range 300 {
		var fp Fingerprint
		binary.BigEndian.PutUint64(fp[8:], uint64((i*7)%100))
		f.Add(fp)
	}
	f.Check(newView(0, nil))
	picks := f.Winners(nil, 0, 300, func(int) bool { return false }, nil)
	if len(picks) != 100 || picks[0] != 0 || picks[99] != 99 {
		t.Errorf("winners %v", picks)
	}
	strictlyRising(t, f.Run(func(i int) bool { return i < 100 }))
}
