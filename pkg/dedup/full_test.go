package dedup

import "testing"

// TestAnOverfullGateCostsQuestionsOnly: a filter that took far more keys than it was
// planned for says "maybe" to nearly everything. None of that is a duplicate but what
// is one, with the segments in Postgres, held whole, or both; and the gate says that
// it wants to be rebuilt.
func TestAnOverfullGateCostsQuestionsOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes.merge = 3
	v := w.load(0)
	const each, rounds = 20_000, 5
	for round := range rounds {
		numbers := make([]int, each)
		for i := range numbers {
			numbers[i] = 3 * (round*each + i) // the others are new
		}
		w.write(v, 'a', numbers...)
		w.seal(v)
		if round == 0 {
			v.mu.Lock()
			v.gate = newFilter(1, shape{rate: 0.001}) // planned for one
			for _, n := range numbers {
				v.gate.add(slotAt(fps(n)))
			}
			v.mu.Unlock()
		}
	}
	if s := v.Stats(); !s.Rebuild || !v.gate.full() {
		t.Fatalf("the gate is not full: %+v", s)
	}
	check := func(what string) {
		t.Helper()
		var numbers []int
		for n := 0; n < 3*each*rounds; n += 67 {
			numbers = append(numbers, n)
		}
		for n, dup := range w.known(v, numbers...) {
			if dup != (n%3 == 0) {
				t.Fatalf("%s: key %d: duplicate %v", what, n, dup)
			}
		}
	}
	var f Fold
	f.Reset(0)
	for n := 1; n < 1500; n += 3 {
		f.Add(fpOf(n))
	}
	f.Check(v)
	if f.Asked < 490 {
		t.Fatalf("the gate knows %d of 500 keys to be new: the test shows nothing", 500-f.Asked)
	}
	check("in Postgres")
	heat(v, v.segments[1:]...)
	w.readWhole(v, plenty)
	check("some whole")
	heat(v, v.segments...)
	w.readWhole(v, plenty)
	check("all whole")
	w.compact(v)
	check("merged")
}

// TestAnIDThatCollides: keys that nobody sent and that pass the gate and a segment's
// own filter, chosen for that. Memory or Postgres says that they are new.
func TestAnIDThatCollides(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	numbers := make([]int, 15_000)
	for i := range numbers {
		numbers[i] = i
	}
	w.write(v, 'a', numbers...)
	w.seal(v)
	var colliding []int
	for n := len(numbers); len(colliding) < 20; n++ {
		if k := slotOf(fpOf(n)); v.gate.has(k) && v.segments[0].filter.has(k) {
			colliding = append(colliding, n)
		}
	}
	for _, whole := range []bool{false, true} {
		if whole {
			heat(v, v.segments...)
			w.readWhole(v, plenty)
		}
		for n, dup := range w.known(v, append([]int{7}, colliding...)...) {
			if dup != (n == 7) {
				t.Errorf("whole %v: key %d: duplicate %v", whole, n, dup)
			}
		}
	}
}
