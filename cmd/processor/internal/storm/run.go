package storm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"effectonce/cmd/processor/internal/bench"
	"effectonce/cmd/processor/internal/produce"
)

// run runs the storm of each protocol asked for.
func (o *options) run(ctx context.Context, progress io.Writer) (report, error) {
	all := []string{o.protocol}
	if o.protocol == allProtocols {
		all = protocols
	}
	var r report
	for _, p := range all {
		one := *o
		one.protocol = p
		one.killsAtOnce = min(o.killsAtOnce, o.members-1)
		if len(all) > 1 && o.svg != "" {
			one.svg = strings.TrimSuffix(o.svg, ".svg") + "-" + p + ".svg"
		}
		res, err := one.runOne(ctx, progress)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		r = append(r, res)
	}
	return r, nil
}

func (o *options) runOne(ctx context.Context, progress io.Writer) (_ *Result, err error) {
	start, load := time.Now(), bench.LoadAverage()
	s, err := prepare(ctx, *o)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.remove(context.WithoutCancel(ctx))) }()
	p := &play{stage: s, start: start, progress: progress, crew: newCrew(s), watch: newWatch(s)}
	p.weather = &weather{crew: p.crew, watch: p.watch, rng: rand.New(rand.NewPCG(s.seed, 0x73746F726D))}
	defer func() { err = errors.Join(err, p.crew.end(0)) }()
	if err := p.perform(ctx); err != nil {
		return nil, err
	}
	p.say("counting")
	res, err := p.count(ctx)
	if err != nil {
		return nil, err
	}
	res.LoadAverage, res.LoadAverageEnd, res.Seconds = load, bench.LoadAverage(), time.Since(start).Seconds()
	if s.svg != "" {
		if err := os.WriteFile(s.svg, p.draw(), 0o600); err != nil {
			return nil, fmt.Errorf("timeline: %w", err)
		}
	}
	return res, nil
}

// play is one protocol's storm under way.
type play struct {
	*stage

	start     time.Time
	progress  io.Writer
	crew      *crew
	watch     *watch
	weather   *weather
	phases    []phase
	sent      produce.Sent // to our topic
	told      produce.Sent // to the naive group's
	enough    func() error // ends the senders
	unsettled int          // times the group did not settle in time

	trail trail // read behind the end
}

// phase is a part of the play.
type phase struct {
	name     string
	from, to time.Time
	events   []*event
}

// The phases.
const (
	calm     = "calm"
	stormy   = "storm"
	restarts = "restarts"
	kills    = "kills"
)

// patience bounds every wait for what must happen.
const patience = time.Minute

func (p *play) say(format string, args ...any) {
	_, _ = fmt.Fprintf(p.progress, "%5.0f s  %s  %s\n", time.Since(p.start).Seconds(), p.protocol, fmt.Sprintf(format, args...)) // progress only
}

// perform plays all phases while records are sent, and drains.
func (p *play) perform(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return p.watch.run(ctx) })
	sending, enough := context.WithCancel(ctx)
	var senders errgroup.Group
	p.enough = func() error { // no record is under way any more
		enough()
		return senders.Wait()
	}
	send := func(job produce.Job, sent *produce.Sent) {
		job.Brokers, job.Repeat, job.Seed = p.Brokers, repeatPercent, p.seed
		senders.Go(func() error {
			err := produce.Run(sending, job, sent)
			if err != nil {
				stop()
			}
			return err
		})
	}
	send(produce.Job{Topic: p.name, Due: p.watch.due}, &p.sent)
	if p.naiveRate > 0 {
		send(produce.Job{Topic: p.naiveTopic(), Rate: p.naiveRate}, &p.told)
	}
	g.Go(func() error {
		defer stop()
		err := p.acts(ctx)
		return errors.Join(p.enough(), err)
	})
	return g.Wait()
}

// repeatPercent is how many of 100 records repeat an earlier order.
const repeatPercent = 10

// acts plays the phases one after another.
func (p *play) acts(ctx context.Context) error {
	for _, s := range p.crew.slots[:p.members] {
		if err := p.crew.start(ctx, s); err != nil {
			return err
		}
	}
	if settled, err := p.weather.settle(ctx, patience); err != nil || !settled {
		return errors.Join(err, errNotSettled)
	}
	for began := time.Now(); !p.watch.full(); {
		if time.Since(began) > patience {
			return errNoBacklog
		}
		if err := p.weather.turn(ctx); err != nil {
			return err
		}
	}
	for _, act := range []func(context.Context) error{p.calmly, p.stormily, p.calmly, p.restarting, p.killing, p.drain} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return nil
}

var errNoBacklog = errors.New("the producer does not get ahead of the group: try a smaller --batch")

var errNotSettled = errors.New("the group did not settle: not every member came to hold its part of the partitions")

// during notes a phase around f.
func (p *play) during(name string, f func() error) error {
	first, ph := len(p.weather.done), phase{name: name, from: time.Now()}
	p.say("%s", name)
	err := f()
	ph.to, ph.events = time.Now(), p.weather.done[first:]
	p.phases = append(p.phases, ph)
	return err
}

func (p *play) calmly(ctx context.Context) error {
	p.watch.note(true)
	defer p.watch.note(false)
	return p.during(calm, func() error { return p.weather.rest(ctx, p.calm/2) })
}

// stormily ends with as many members as it began with, settled.
func (p *play) stormily(ctx context.Context) error {
	p.watch.note(true)
	err := p.during(stormy, func() error { return p.weather.blow(ctx, p.storm) })
	p.watch.note(false)
	if err != nil {
		return err
	}
	for len(p.crew.pids()) > p.members {
		if err := p.crew.leave(p.crew.awake()[0]); err != nil {
			return err
		}
	}
	for len(p.crew.pids()) < p.members {
		if err := p.crew.start(ctx, p.crew.empty()[0]); err != nil {
			return err
		}
	}
	return p.settle(ctx)
}

// settle waits for the group, and counts it when it does not settle.
func (p *play) settle(ctx context.Context) error {
	settled, err := p.weather.settle(ctx, patience/2)
	if err == nil && !settled {
		p.unsettled++
		p.say("the group has not settled")
	}
	return err
}

func (p *play) restarting(ctx context.Context) error {
	return p.during(restarts, func() error {
		return p.series(p.options.restarts, func(int) (bool, error) { return p.weather.restart(ctx, patience/2) })
	})
}

// killing needs no large backlog, and working it off is time for kills.
func (p *play) killing(ctx context.Context) error {
	p.watch.lower()
	return p.during(kills, func() error {
		return p.series(p.options.kills, func(left int) (bool, error) {
			return p.weather.kill(ctx, min(left, p.killsAtOnce), patience/2)
		})
	})
}

// reserve is what the last kill must leave of the time: to settle, to work off the
// backlog as fast as so far, and to count.
func (p *play) reserve() time.Duration {
	sent, done := float64(p.sent.Records.Load()), float64(p.watch.total())
	working := time.Since(p.phases[0].from).Seconds()
	seconds := (sent-done)/max(done, 1)*working + sent/countRate
	return p.session + 15*time.Second + time.Duration(seconds*float64(time.Second))
}

// countRate is how many records a second can be counted at least.
const countRate = 300_000

// series has events happen until there are n of them or the time is up. Each time the
// group must settle.
func (p *play) series(n int, once func(left int) (settled bool, err error)) error {
	first := len(p.weather.done)
	for left := n; left > 0; left = n - (len(p.weather.done) - first) {
		if time.Since(p.start) > p.within-p.reserve() {
			p.say("no time for more")
			return nil
		}
		settled, err := once(left)
		if err != nil {
			return err
		}
		if !settled {
			p.unsettled++
			p.say("the group has not settled")
		}
	}
	return nil
}

// drain waits until everything that was sent is behind both groups, and ends them.
func (p *play) drain(ctx context.Context) error {
	p.say("draining")
	if err := p.enough(); err != nil {
		return err
	}
	moved, at := time.Now(), int64(-1)
	for {
		done, sum, err := p.drained(ctx)
		if err != nil {
			return err
		}
		if done {
			break
		}
		if sum > at {
			moved, at = time.Now(), sum
		}
		if time.Since(moved) > patience {
			return fmt.Errorf("nothing moved for %s: %w", patience, errStuck)
		}
		if err := p.weather.turn(ctx); err != nil {
			return err
		}
	}
	return p.crew.end(drainGrace)
}

// drainGrace is how long a member may take to end at the end.
const drainGrace = 25 * time.Second

var errStuck = errors.New("a partition is stuck")
