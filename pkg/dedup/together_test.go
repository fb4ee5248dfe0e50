package dedup

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"effectonce/pkg/stream"
)

// TestCommitsGoOn: a committer and everything that works in the background at
// once, on one view. Every answer of every batch is exact, and nothing is ever
// dropped: all changes of the segments are the view's own.
func TestCommitsGoOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	w.store.sizes.block, w.store.sizes.copy, w.store.sizes.page, w.store.sizes.slice, w.store.sizes.runs = 10, 20, 4, 100, 20
	w.store.sizes.segment = 2000
	v := w.load(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	eg, ectx := errgroup.WithContext(ctx)
	var sealed, merged, held atomic.Int64
	conn := w.Conn(t)
	eg.Go(func() error {
		for ectx.Err() == nil {
			n, err := w.store.Seal(ectx, conn, patient, v)
			if n > 0 {
				sealed.Add(1)
			}
			if err == nil {
				var n int
				n, err = w.store.Compact(ectx, conn, patient, v, nil)
				merged.Add(int64(n))
			}
			if err == nil && (v.Stats().Rebuild || sealed.Load()%5 == 0) {
				v.ungate()
				err = w.store.Rebuild(ectx, conn, patient, v, func(_, _ int64) {})
			}
			if err == nil {
				heat(v, v.live()...)
				err = w.store.ReadWhole(ectx, conn, patient, v, sealed.Load()%4*40_000)
				held.Store(max(held.Load(), v.Stats().Whole))
			}
			if err == nil {
				_, err = w.store.Clean(ectx, conn, patient, v.Log)
			}
			if err != nil && ectx.Err() == nil {
				return err
			}
		}
		return nil
	})
	t.Cleanup(func() { // also when the committer has failed: its connection is closed behind this
		cancel()
		_ = eg.Wait()
	})
	rng := fixed(21, 22)
	applied := map[int]bool{}
	for batches := 0; batches < 200 || merged.Load() < 6 && batches < 5000; batches++ {
		var f Fold
		f.Reset(0)
		numbers := []int{}
		for range 1 + rng.IntN(20) {
			numbers = append(numbers, rng.IntN(40_000))
		}
		for _, n := range numbers {
			f.Add(fpOf(n))
		}
		for f.Check(v) > 0 {
			if err := w.store.LookUp(ctx, w.conn, patient, &f); err != nil {
				t.Fatal(err)
			}
			if !f.Open() {
				break
			}
			if err := w.catchUp(v, 0); err != nil { // it may have moved on only by itself
				t.Fatal(err)
			}
		}
		for i, n := range numbers {
			if f.Duplicate(i) != applied[n] {
				t.Fatalf("key %d: duplicate %v", n, f.Duplicate(i))
			}
		}
		won := map[int]bool{}
		for _, i := range f.Winners(nil, 0, len(numbers), func(int) bool { return false }, nil) {
			won[i], applied[numbers[i]] = true, true
		}
		r := Run{View: v, ID: stream.NewUUID(), Fingerprints: f.Run(func(i int) bool { return won[i] })}
		if err := w.append(ctx, w.conn, r); err != nil {
			t.Fatal(err)
		}
		v.Learn(r.ID, r.Fingerprints)
	}
	cancel()
	if err := eg.Wait(); err != nil {
		t.Fatal(err)
	}
	if merged.Load() < 6 || held.Load() == 0 {
		t.Errorf("%d seals, %d merged, %d bytes held whole: the test shows little", sealed.Load(), merged.Load(), held.Load())
	}
	w.knows(w.load(0), 40_000, applied)
}

// TestBackgroundTakesTurns: a task waits for the one before it, and no longer than
// its context.
func TestBackgroundTakesTurns(t *testing.T) {
	t.Parallel()
	v := newView(1, nil)
	done, err := v.background(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := v.background(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("two at once: %v", err)
	}
	done()
	if done, err = v.background(t.Context()); err != nil {
		t.Fatal(err)
	}
	done()
}

// TestChoose: which segments a compaction takes.
func TestChoose(t *testing.T) {
	t.Parallel()
	z := sizes{merge: 3, segment: 100}
	seg := func(tier int, keys, first int64) *Segment {
		return &Segment{Tier: tier, Keys: keys, First: first, Newest: time.Unix(first, 0)}
	}
	week := func(s Segment) int64 { return s.Newest.Unix() / 10 }
	for _, c := range []struct {
		name   string
		live   []*Segment
		window func(Segment) int64
		want   []int64 // their first runs
	}{
		{"none", nil, nil, nil},
		{"too few of a tier", []*Segment{seg(0, 1, 1), seg(0, 1, 2), seg(1, 1, 3)}, nil, nil},
		{"the oldest", []*Segment{seg(0, 9, 4), seg(0, 9, 1), seg(0, 1, 3), seg(0, 1, 2)}, nil, []int64{1, 2, 3}},
		{"the lowest tier first", []*Segment{seg(1, 1, 1), seg(1, 1, 2), seg(1, 1, 3), seg(0, 1, 7), seg(0, 1, 8), seg(0, 1, 9)}, nil, []int64{7, 8, 9}},
		{"no more keys than a segment may have", []*Segment{seg(0, 40, 1), seg(0, 60, 2), seg(0, 50, 3)}, nil, []int64{1, 2}},
		{"one more would fit", []*Segment{seg(0, 40, 1), seg(0, 30, 2)}, nil, nil},
		{"all too large", []*Segment{seg(2, 60, 1), seg(2, 60, 2), seg(2, 60, 3)}, nil, nil},
		{"full ones do not stand in the way of others", []*Segment{seg(2, 100, 1), seg(2, 5, 2), seg(2, 5, 3), seg(2, 5, 4)}, nil, []int64{2, 3, 4}},
		{"never across windows", []*Segment{seg(0, 1, 1), seg(0, 1, 11), seg(0, 1, 21)}, week, nil},
		{"within one", []*Segment{seg(0, 1, 8), seg(0, 1, 11), seg(0, 1, 12), seg(0, 1, 13)}, week, []int64{11, 12, 13}},
	} {
		var got []int64
		for _, s := range choose(c.live, c.window, z) {
			got = append(got, s.First)
		}
		if len(got) != len(c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, got, c.want)
			}
		}
	}
}
