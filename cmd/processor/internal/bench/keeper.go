package bench

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
)

// duty is what is done in the background while records are committed.
type duty struct {
	seal    int64 // keys in memory that are sealed together
	compact bool
	rebuild bool  // when the gate is full
	memory  int64 // bytes, as dedup.memory; what is free of it holds segments whole
}

// behindSettings are those of seals, merges and scans, which take what they take.
func behindSettings() pgtx.Settings {
	return pgtx.Settings{Lock: 30 * time.Second, Statement: 30 * time.Minute, Idle: time.Minute}
}

// ahead is how many seals the committer may be ahead of the background.
const ahead = 3

// commits applies batches until source has none left, and waits for what they left
// to do in the background. The time it returns counts both.
func (l *ledger) commits(ctx context.Context, d duty, effect bool, source func([]int64) []int64) (time.Duration, error) {
	start := time.Now()
	turn := make(chan struct{}, 1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		for range turn {
			if err := l.keep(ctx, d); err != nil {
				return err
			}
		}
		return l.keep(ctx, d)
	})
	g.Go(func() error {
		defer close(turn)
		var numbers []int64
		for {
			if numbers = source(numbers[:0]); len(numbers) == 0 {
				return nil
			}
			if err := l.commit(ctx, numbers, effect); err != nil {
				return err
			}
			if int64(l.view.Keys()) < d.seal && !l.view.Eager() {
				continue
			}
			if err := hand(ctx, turn, int64(l.view.Keys()) >= ahead*d.seal); err != nil {
				return err
			}
		}
	})
	err := g.Wait()
	return time.Since(start), err
}

// hand wakes the background, and waits until it takes notice if it is far behind.
func hand(ctx context.Context, turn chan<- struct{}, wait bool) error {
	if !wait {
		select {
		case turn <- struct{}{}:
		default:
		}
		return nil
	}
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// keep does everything that is due.
func (l *ledger) keep(ctx context.Context, d duty) error {
	for int64(l.view.Keys()) >= d.seal {
		if err := l.sealNow(ctx); err != nil {
			return err
		}
	}
	for d.compact {
		n, err := l.log.Compact(ctx, l.behind, behindSettings(), l.view, nil)
		if err != nil {
			return fmt.Errorf("merge: %w", err)
		}
		if n == 0 {
			break
		}
	}
	if d.rebuild && l.view.Stats().Rebuild {
		if err := l.rebuild(ctx); err != nil {
			return err
		}
	}
	if err := l.clean(ctx); err != nil {
		return err
	}
	return l.whole(ctx, d)
}

// keyBytes is what a key takes in the exact set, as a pipeline reckons.
const keyBytes = 27

// whole reads segments whole that are asked often, into what is left of the memory
// beside the filters and a full exact set.
func (l *ledger) whole(ctx context.Context, d duty) error {
	room := d.memory - l.view.Stats().Filters - d.seal*keyBytes
	if err := l.log.ReadWhole(ctx, l.behind, behindSettings(), l.view, room); err != nil {
		return fmt.Errorf("read whole: %w", err)
	}
	return nil
}

// sealNow seals all that is in memory.
func (l *ledger) sealNow(ctx context.Context) error {
	if _, err := l.log.Seal(ctx, l.behind, behindSettings(), l.view); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

func (l *ledger) rebuild(ctx context.Context) error {
	if err := l.log.Rebuild(ctx, l.behind, behindSettings(), l.view, nil); err != nil {
		return fmt.Errorf("rebuild: %w", err)
	}
	return nil
}

// clean removes all that is not needed.
func (l *ledger) clean(ctx context.Context) error {
	for {
		n, err := l.log.Clean(ctx, l.behind, behindSettings(), l.view.Log)
		if err != nil {
			return fmt.Errorf("clean: %w", err)
		}
		if n == 0 {
			return nil
		}
	}
}
