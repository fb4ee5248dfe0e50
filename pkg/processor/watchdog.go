package processor

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"effectonce/pkg/rebalance"
)

// stall is a partition that stands still though nothing that is known keeps it. No
// error tells of it, so it is looked for.
type stall struct {
	why   why
	since time.Time
	at    int64 // its position
	told  bool
}

// why a partition stands still; a label of a metric.
type why string

const (
	notArmed  why = "not_armed"    // assigned, but the client never asked where to begin: it fetches nothing
	silent    why = "silent"       // there is lag and room for it, and the client fetches nothing
	unheard   why = "no_heartbeat" // of no partition: the client does not take part in the group any more
	notLanded why = "not_landed"   // its batch is in flight for longer than its time limit: somebody does not return
)

func (w why) text() string {
	switch w {
	case notArmed:
		return "it is assigned, and the client never asked where to begin"
	case silent:
		return "there is lag, and nothing is fetched"
	case unheard:
		return "the group has answered no heartbeat, though Kafka answers"
	default:
		return "its batch does not come back: a handler that does not return has a committer; only a restart ends it"
	}
}

// watchdog remembers from look to look what stood still.
type watchdog struct {
	mu     sync.Mutex // guards what follows
	byName map[rebalance.Name]stall
}

// follow takes in what a look found, and returns what stands still for longer than
// limit since this look, and what did and goes on. What moved in between, if only a
// bit, begins anew.
func (w *watchdog) follow(found map[rebalance.Name]stall, limit time.Duration, now time.Time) (begun, over map[rebalance.Name]stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	begun, over = map[rebalance.Name]stall{}, map[rebalance.Name]stall{}
	for n, s := range found {
		if old, ok := w.byName[n]; ok && old.why == s.why && old.at == s.at {
			s = old
		}
		if !s.told && now.Sub(s.since) >= limit {
			s.told = true
			begun[n] = s
		}
		found[n] = s
	}
	for n, old := range w.byName {
		if s, ok := found[n]; old.told && (!ok || !s.told) {
			over[n] = old
		}
	}
	w.byName = found
	return begun, over
}

// stalls returns what stands still for too long, by name.
func (w *watchdog) stalls() (names []rebalance.Name, byName map[rebalance.Name]stall) {
	w.mu.Lock()
	defer w.mu.Unlock()
	byName = map[rebalance.Name]stall{}
	for n, s := range w.byName {
		if s.told {
			names = append(names, n)
			byName[n] = s
		}
	}
	slices.SortFunc(names, rebalance.Name.Compare)
	return names, byName
}

// look looks for what stands still, and tells of it. answers says that Kafka has just
// named the ends of all partitions, so that it is not the one that stands still. What
// only a new client heals is errStalled.
func (p *Processor) look(now time.Time, answers bool) error {
	begun, over := p.watchdog.follow(p.still(now, answers), p.cfg.StalledAfter, now)
	for n, s := range begun {
		p.logger.Error().Str("topic", n.Topic).Int32("partition", n.Number).Int64("offset", s.at).Time("since", s.since).
			Str("cause", string(s.why)).Msg("stands still: " + s.why.text())
	}
	for n, s := range over {
		p.logger.Info().Str("topic", n.Topic).Int32("partition", n.Number).Int64("offset", s.at).
			Dur("took", now.Sub(s.since)).Str("cause", string(s.why)).Msg("goes on")
	}
	names, stalls := p.watchdog.stalls()
	heal := false
	for _, s := range stalls {
		if s.why == notLanded { // opening again would wait for it
			return nil
		}
		heal = true
	}
	if heal && p.cfg.rebuilds.may(now) {
		p.metrics.rebuilt.Inc()
		return fmt.Errorf("%w: %s: %s", errStalled, names[0], stalls[names[0]].why.text())
	}
	return nil
}

// errStalled ends a run whose client stands still: the pipeline is opened again, with
// a new one.
var errStalled = errors.New("the Kafka client stands still")

// still finds what may stand still. Not so: what nothing can be read from (everything
// up to the last stable offset is applied), what is not asked to run, and what waits
// for room or has records that wait for Postgres.
func (p *Processor) still(now time.Time, answers bool) map[rebalance.Name]stall {
	found := map[rebalance.Name]stall{}
	standings, _ := p.list.standings()
	outside, full := p.member(now), p.list.over()
	for _, h := range p.group.Held() {
		s, ok := standings[h.Name]
		t, _ := p.tails.of(h.Name)
		switch {
		case !answers:
		case h.State == rebalance.Taking && outside == nil:
			found[h.Name] = stall{why: notArmed, since: h.Since}
		case h.State == rebalance.Running && ok && s.dry && !full && t.lag(s.claim.Next) > 0:
			found[h.Name] = stall{why: silent, since: now, at: s.claim.Next}
		}
	}
	if answers && errors.Is(outside, errNoHeartbeat) {
		found[rebalance.Name{Topic: "group " + p.cfg.Group}] = stall{why: unheard, since: now}
	}
	for n, began := range p.list.flights() {
		if now.Sub(began) > p.cfg.BatchTime {
			found[n] = stall{why: notLanded, since: began.Add(p.cfg.BatchTime)}
		}
	}
	return found
}

// rebuilds bounds how often the client is made anew, over all openings of a run: at
// once, then after a minute, and half as often each time until an hour was calm.
type rebuilds struct {
	last time.Time
	wait time.Duration
}

func (r *rebuilds) may(now time.Time) bool {
	since := now.Sub(r.last)
	if since > time.Hour {
		r.wait = 0
	}
	if since < r.wait {
		return false
	}
	r.last, r.wait = now, min(max(2*r.wait, time.Minute), 32*time.Minute)
	return true
}
