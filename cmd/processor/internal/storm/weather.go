package storm

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"
)

// The kinds of event. A restart is of the phase of its own.
const (
	join    = "join"    // a process comes to an empty place
	leave   = "leave"   // SIGTERM
	freeze  = "freeze"  // SIGSTOP past the session, then SIGCONT
	kill    = "kill"    // kill -9, and started again
	restart = "restart" // SIGTERM, and started again when it has ended
)

// event is one thing that was done to a member.
type event struct {
	Kind string    `json:"kind"`
	At   time.Time `json:"at"`
	Till time.Time `json:"till"` // when what it began was over: thawed, or the group settled
	Slot int       `json:"member"`
	pid  int       // whom it hit
	held []int32   // the partitions it held
}

// weather makes a storm out of a crew.
type weather struct {
	crew  *crew
	watch *watch
	rng   *rand.Rand
	done  []*event
	later []chore
}

// chore is what an event has left to do.
type chore struct {
	at time.Time
	do func() error
}

// revival is how long a killed process is gone.
const revival = 500 * time.Millisecond

// glance is the time between two looks at what nothing announces.
const glance = 20 * time.Millisecond

// blow has events for a while, then waits for what they began.
func (w *weather) blow(ctx context.Context, duration time.Duration) error {
	every := time.Duration(float64(time.Minute) / w.crew.stage.rate)
	end := time.Now().Add(duration)
	next := time.Now().Add(w.jitter(every))
	for now := time.Now(); now.Before(end) || len(w.later) > 0; now = time.Now() {
		if now.Before(end) && now.After(next) {
			if err := w.strike(ctx); err != nil {
				return err
			}
			next = next.Add(w.jitter(every))
		}
		if err := w.turn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// jitter is d, give or take a half.
func (w *weather) jitter(d time.Duration) time.Duration {
	return d/2 + time.Duration(w.rng.Int64N(int64(d)))
}

// turn waits a little, does what is due and looks after the processes.
func (w *weather) turn(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(glance):
	}
	now := time.Now()
	var rest []chore
	for _, t := range w.later {
		if now.Before(t.at) {
			rest = append(rest, t)
		} else if err := t.do(); err != nil {
			return err
		}
	}
	w.later = rest
	return w.crew.check()
}

func (w *weather) after(d time.Duration, do func() error) {
	w.later = append(w.later, chore{time.Now().Add(d), do})
}

// possible are the kinds that leave a group behind: half of the members awake, and
// one more or less than at the start.
func (w *weather) possible() []string {
	o := w.crew.stage
	awake, all := len(w.crew.awake()), len(w.crew.pids())
	can := map[string]bool{
		join:   len(w.crew.empty()) > 0,
		leave:  all >= o.members && awake > (o.members+1)/2,
		freeze: awake > (o.members+1)/2,
		kill:   awake > (o.members+1)/2,
	}
	return slices.DeleteFunc(slices.Clone(o.kinds), func(k string) bool { return !can[k] })
}

// strike draws an event and has it happen. Without a possible one it passes.
func (w *weather) strike(ctx context.Context) error {
	kinds := w.possible()
	if len(kinds) == 0 {
		return nil
	}
	kind := kinds[w.rng.IntN(len(kinds))]
	if kind == join {
		empty := w.crew.empty()
		s := empty[w.rng.IntN(len(empty))]
		w.note(kind, s)
		return w.crew.start(ctx, s)
	}
	awake := w.crew.awake()
	s := awake[w.rng.IntN(len(awake))]
	e := w.note(kind, s)
	switch kind {
	case leave:
		return w.crew.leave(s)
	case freeze:
		past := w.crew.stage.session + time.Second + time.Duration(w.rng.Int64N(int64(2*time.Second)))
		e.Till = e.At.Add(past)
		w.after(past, func() error {
			e.Till = time.Now()
			return w.crew.thaw(s)
		})
		return w.crew.freeze(s)
	}
	w.after(revival, func() error { return w.crew.start(ctx, s) })
	return w.crew.kill(s)
}

// note writes an event down before it happens.
func (w *weather) note(kind string, s *slot) *event {
	e := &event{Kind: kind, At: time.Now(), Slot: s.number}
	if s.ours != nil {
		e.pid = s.pid()
		e.held = w.watch.heldBy(e.pid)
	}
	w.done = append(w.done, e)
	return e
}

// settle waits until the members hold all partitions in equal parts; after patience
// it goes on as it is, and says so.
func (w *weather) settle(ctx context.Context, patience time.Duration) (settled bool, err error) {
	for end := time.Now().Add(patience); time.Now().Before(end); {
		if w.watch.even(w.crew.pids()) {
			return true, nil
		}
		if err := w.turn(ctx); err != nil {
			return false, err
		}
	}
	return false, nil
}

// rest lets time pass without events.
func (w *weather) rest(ctx context.Context, d time.Duration) error {
	for end := time.Now().Add(d); time.Now().Before(end); {
		if err := w.turn(ctx); err != nil {
			return err
		}
	}
	return nil
}

// restart has a member of a settled group end and start again, and waits until the
// group has settled again.
func (w *weather) restart(ctx context.Context, patience time.Duration) (settled bool, err error) {
	awake := w.crew.awake()
	s := awake[w.rng.IntN(len(awake))]
	e := w.note(restart, s)
	if err := w.crew.leave(s); err != nil {
		return false, err
	}
	for len(w.crew.leaving) > 0 {
		if err := w.turn(ctx); err != nil {
			return false, err
		}
	}
	if err := w.crew.start(ctx, s); err != nil {
		return false, err
	}
	return w.settled(ctx, patience, e)
}

// kill has n members of a settled group killed at once and started again, likewise.
func (w *weather) kill(ctx context.Context, n int, patience time.Duration) (settled bool, err error) {
	awake := w.crew.awake()
	w.rng.Shuffle(len(awake), func(i, j int) { awake[i], awake[j] = awake[j], awake[i] })
	var all []*event
	for _, s := range awake[:n] {
		all = append(all, w.note(kill, s))
		if err := w.crew.kill(s); err != nil {
			return false, err
		}
		w.after(revival, func() error { return w.crew.start(ctx, s) })
	}
	for len(w.later) > 0 {
		if err := w.turn(ctx); err != nil {
			return false, err
		}
	}
	return w.settled(ctx, patience, all...)
}

func (w *weather) settled(ctx context.Context, patience time.Duration, events ...*event) (bool, error) {
	settled, err := w.settle(ctx, patience)
	for _, e := range events {
		e.Till = time.Now()
	}
	return settled, err
}
