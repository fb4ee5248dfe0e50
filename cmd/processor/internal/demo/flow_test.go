package demo

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"effectonce/cmd/processor/internal/embedded"
	"effectonce/cmd/processor/internal/naive"
)

// script is a store whose progress is a function of how often it was asked. A
// victim is at work at its second look.
type script struct {
	progressOf func(look int) int64
	looks      int
	asked      map[int]int
	order      []int // the victims that were found at work
}

func (s *script) progress(context.Context) (int64, error) {
	s.looks++
	return s.progressOf(s.looks), nil
}

func (s *script) working(_ context.Context, pid int) (bool, error) {
	if s.asked[pid]++; s.asked[pid] == 2 {
		s.order = append(s.order, pid)
	}
	return s.asked[pid] >= 2, nil
}

// rehearsal is a flow whose processes wait for orders that never come.
func rehearsal(t *testing.T, progressOf func(int) int64) (*flow, *script, *bytes.Buffer) {
	t.Helper()
	o := options(t)
	o.Records = 1000
	store := &script{progressOf: progressOf, asked: map[int]int{}}
	var told bytes.Buffer
	f := newFlow("member", o, newTeller(&told, 1), func() error { return nil }, store)
	for range o.Members {
		f.specs = append(f.specs, embedded.Spec{Name: "member", Path: o.Binary, Args: []string{naive.Verb}, Log: filepath.Join(t.TempDir(), "log")})
	}
	t.Cleanup(func() {
		if err := f.kill(); err != nil {
			t.Error(err)
		}
	})
	return f, store, &told
}

func TestFlowKillsTheVictimAtItsMoments(t *testing.T) {
	f, store, told := rehearsal(t, func(look int) int64 { return int64(10 * look) })
	if err := f.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.kills.Load() != kills || len(store.order) != kills {
		t.Fatalf("%d kills, of %v", f.kills.Load(), store.order)
	}
	for k, m := range f.moments {
		if low := int64(100 + 200*k); m.at < low || m.at > low+100 || m.seen < m.at {
			t.Errorf("kill %d: due at %d, seen at work at %d", k, m.at, m.seen)
		}
	}
	now := f.members[f.victim].PID()
	if slices.Contains(store.order, now) || len(slices.Compact(slices.Sorted(slices.Values(store.order)))) != kills {
		t.Errorf("killed %v, and now %d is the victim", store.order, now)
	}
	if strings.Count(told.String(), "kill -9 member ") != kills {
		t.Errorf("told: %s", told)
	}
}

func TestFlowSparesAVictimThatDoesNotWork(t *testing.T) {
	f, store, _ := rehearsal(t, func(look int) int64 { return int64(100 * look) })
	store.asked = nil
	f.store = idle{store}
	if err := f.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.kills.Load() != 0 {
		t.Errorf("%d kills of a victim that had nothing to lose", f.kills.Load())
	}
}

type idle struct{ *script }

func (idle) working(context.Context, int) (bool, error) { return false, nil }

func TestFlowGivesUpWhenNothingMoves(t *testing.T) {
	f, _, _ := rehearsal(t, func(int) int64 { return 50 })
	f.stall = 50 * time.Millisecond
	if err := f.run(t.Context()); err == nil || !strings.Contains(err.Error(), "nothing moved for 50ms at 50 of 1000 records") {
		t.Errorf("got %v", err)
	}
}

func TestFlowBlamesTheServerFirst(t *testing.T) {
	f, _, _ := rehearsal(t, func(int) int64 { return 0 })
	gone := errors.New("Postgres ended by itself")
	f.healthy = func() error { return gone }
	if err := f.run(t.Context()); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

func TestMomentsComeFromTheSeed(t *testing.T) {
	o := options(t)
	moments := func(seed uint64) []moment {
		o.Seed = seed
		return newFlow("x", o, nil, nil, nil).moments
	}
	if !slices.Equal(moments(1), moments(1)) || slices.Equal(moments(1), moments(2)) {
		t.Errorf("seed 1: %v, seed 2: %v", moments(1), moments(2))
	}
}
