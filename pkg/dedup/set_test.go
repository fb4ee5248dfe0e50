package dedup

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// TestSetIsAMap compares the set with a map under random keys that often lie side
// by side, with the all-zero fingerprint among them.
func TestSetIsAMap(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(1, 2))
	for round := range 40 {
		s, want := newSet(rng.IntN(3000)), map[slot]bool{}
		universe := keys(rng, 1+rng.IntN(6000))
		for range universe {
			k := universe[rng.IntN(len(universe))]
			s.add(k)
			want[k] = true
		}
		for _, k := range universe {
			if s.has(k) != want[k] {
				t.Fatalf("round %d: has(%x) = %v", round, k, s.has(k))
			}
		}
		if s.n != len(want) {
			t.Fatalf("round %d: %d keys, want %d", round, s.n, len(want))
		}
		if used := s.n * 5; used > len(s.slots)*4 {
			t.Fatalf("round %d: %d keys in %d slots", round, s.n, len(s.slots))
		}
	}
}

// keys are n different ones: crowds around a few places, some of them the end of
// the table, and the zero.
func keys(rng *rand.Rand, n int) []slot {
	seen := map[slot]bool{{}: true}
	out := []slot{{}}
	for len(out) < n {
		k := slot{rng.Uint64(), rng.Uint64N(3)}
		switch rng.IntN(40) {
		case 0:
			k.hi |= 0xffff << 48
		case 1:
			k.hi &= 0xff
		}
		if !seen[k] {
			seen[k] = true
			out = append(out, k)
		}
	}
	return out
}

// TestSetWrapsAround: keys that belong to the last slot go on at the first.
func TestSetWrapsAround(t *testing.T) {
	t.Parallel()
	s := newSet(0)
	last := ^uint64(0)
	for i := range uint64(100) {
		s.add(slot{last, i + 1})
	}
	if s.slots[len(s.slots)-1] != (slot{last, 1}) || s.slots[0] != (slot{last, 2}) {
		t.Fatal("the crowd does not lie at the end and the beginning: the test shows nothing")
	}
	for i := range uint64(100) {
		if !s.has(slot{last, i + 1}) {
			t.Errorf("key %d is lost", i)
		}
	}
	if s.has(slot{last, 101}) || s.has(slot{0, 1}) {
		t.Error("a key that was never added is there")
	}
	size := len(s.slots)
	for i := range uint64(size) { // grows over it
		s.add(slot{i << 50, 1})
	}
	if len(s.slots) == size {
		t.Fatal("the set did not grow")
	}
	for i := range uint64(100) {
		if !s.has(slot{last, i + 1}) {
			t.Errorf("key %d was lost by growing", i)
		}
	}
}

// TestSetSize: the set is full at 4 of 5 slots and not before.
func TestSetSize(t *testing.T) {
	t.Parallel()
	s := newSet(0)
	for i := range minSlots * 4 / 5 {
		s.add(slot{uint64(i), 1})
	}
	if len(s.slots) != minSlots {
		t.Errorf("%d slots for %d keys", len(s.slots), s.n)
	}
	s.add(slot{1, 2})
	if len(s.slots) != 2*minSlots {
		t.Errorf("%d slots for %d keys", len(s.slots), s.n)
	}
	for _, n := range []int{0, 818, 819, 820, 100_000} {
		s := newSet(n)
		size := len(s.slots)
		for i := range n {
			s.add(slot{uint64(i) * 0x9e3779b97f4a7c15, 7})
		}
		if len(s.slots) != size {
			t.Errorf("a set made for %d keys grew", n)
		}
	}
}

// TestViewLearns: a run's keys are in the view, in any order, with what is not a
// whole key ignored.
func TestViewLearns(t *testing.T) {
	t.Parallel()
	v := newView(0, nil)
	var run []byte
	for i := range uint64(50) {
		run = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(run, i<<58), i)
	}
	v.Learn([16]byte{7}, run)
	if v.Keys() != 50 || v.Head != 1 || v.HeadID != [16]byte{7} {
		t.Errorf("%d keys, head %d %s", v.Keys(), v.Head, v.HeadID)
	}
	for i := range uint64(50) {
		if v.find(slot{i << 58, i}) != seen {
			t.Errorf("key %d is not in the view", i)
		}
	}
	v.Learn([16]byte{8}, nil)
	v.LearnKeys(run[:16])
	if v.Keys() != 50 || v.Head != 2 || v.HeadID != [16]byte{8} {
		t.Errorf("%d keys, head %d %s after an empty run", v.Keys(), v.Head, v.HeadID)
	}
}
