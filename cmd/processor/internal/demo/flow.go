package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"effectonce/cmd/processor/internal/embedded"
)

// observer answers from a flow's own store.
type observer interface {
	// progress is how many records are behind the flow for good.
	progress(ctx context.Context) (int64, error)
	// working reports whether the process has consumed since it was started.
	working(ctx context.Context, pid int) (bool, error)
}

// flow is one consumer group of several processes. One of them, the victim, is
// killed at each of the moments, as soon as it is seen at work, and started again.
type flow struct {
	name    string
	total   int64
	stall   time.Duration // without progress is a failure
	say     *teller
	healthy func() error // of the servers
	store   observer
	specs   []embedded.Spec
	victim  int
	moments []moment
	members []*embedded.Child

	at    atomic.Int64 // progress, for the display
	kills atomic.Int64
	took  time.Duration
}

// moment is when the victim dies: at a progress, and no sooner than so many records
// after it was seen at work.
type moment struct {
	at    int64
	later int64
	seen  int64 // progress when it was seen at work, -1 before
}

// newFlow draws the moments from the seed: the same for every flow.
func newFlow(name string, o Options, say *teller, healthy func() error, store observer) *flow {
	rng := rand.New(rand.NewPCG(o.Seed, 0x6B696C6C))
	f := &flow{name: name, total: o.Records, stall: time.Minute, say: say, healthy: healthy, store: store, victim: rng.IntN(o.Members)}
	for k := range kills {
		// 10 to 20 %, 30 to 40 %, 50 to 60 % of the way, and up to 2 % later.
		percent := float64(10+20*k) + 10*rng.Float64()
		f.moments = append(f.moments, moment{
			at: int64(percent / 100 * float64(o.Records)), later: int64(0.02 * rng.Float64() * float64(o.Records)), seen: -1,
		})
	}
	return f
}

// glance is the time between two looks at the progress.
const glance = 20 * time.Millisecond

// run starts the processes and returns when all records are behind the flow. The
// processes go on; kill or stop ends them.
func (f *flow) run(ctx context.Context) error {
	start := time.Now()
	f.members = make([]*embedded.Child, len(f.specs))
	for i := range f.specs {
		if err := f.start(i); err != nil {
			return err
		}
	}
	tick := time.NewTicker(glance)
	defer tick.Stop()
	moved := time.Now()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
		at, err := f.look(ctx)
		switch {
		case err != nil:
			return err
		case at >= f.total:
			f.took = time.Since(start)
			return nil
		case at > f.at.Load():
			moved = time.Now()
			f.at.Store(at)
		case time.Since(moved) > f.stall:
			return fmt.Errorf("nothing moved for %s at %d of %d records%s", f.stall, at, f.total, f.tails())
		}
		if err := f.strike(ctx, at); err != nil {
			return err
		}
	}
}

// look returns the progress, or what has died. The servers come first: without
// them the members die too, and that is not the story.
func (f *flow) look(ctx context.Context) (int64, error) {
	if err := f.healthy(); err != nil {
		return 0, err
	}
	for _, m := range f.members {
		select {
		case <-m.Done():
			return 0, m.Died()
		default:
		}
	}
	at, err := f.store.progress(ctx)
	if err != nil {
		return 0, fmt.Errorf("progress of the %ss: %w", f.name, err)
	}
	return at, nil
}

// strike kills the victim if its next moment has come.
func (f *flow) strike(ctx context.Context, at int64) error {
	k := int(f.kills.Load())
	if k == len(f.moments) || at < f.moments[k].at {
		return nil
	}
	m := &f.moments[k]
	if m.seen < 0 {
		working, err := f.store.working(ctx, f.members[f.victim].PID())
		if err != nil {
			return fmt.Errorf("%s at work: %w", f.name, err)
		}
		if working {
			m.seen = at
		}
	}
	if m.seen < 0 || at < m.seen+m.later {
		return nil
	}
	if err := f.members[f.victim].Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", f.name, err)
	}
	f.kills.Add(1)
	f.say.line("kill -9 %s %d at %d %%", f.name, f.victim+1, 100*at/f.total)
	return f.start(f.victim)
}

func (f *flow) start(i int) error {
	m, err := embedded.Start(f.specs[i])
	if err != nil {
		return err
	}
	f.members[i] = m
	return nil
}

// kill ends every process at once.
func (f *flow) kill() error {
	var errs []error
	for _, m := range f.members {
		if m != nil {
			errs = append(errs, m.Kill())
		}
	}
	return errors.Join(errs...)
}

// stop ends the processes as an operator would, and fails if one does not end well.
func (f *flow) stop() error {
	const grace = 20 * time.Second
	var group errgroup.Group
	for _, m := range f.members {
		group.Go(func() error { return m.Stop(grace) })
	}
	return group.Wait()
}

func (f *flow) tails() string {
	var text strings.Builder
	for _, m := range f.members {
		text.WriteString(m.Tail())
	}
	return text.String()
}
