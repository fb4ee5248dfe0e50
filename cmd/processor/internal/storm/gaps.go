package storm

import (
	"math"
	"slices"
	"time"
)

// The classes of gaps. See the package comment.
const (
	unmoved   = "unmoved"
	frozen    = "frozen"
	reclaimed = "reclaimed"
	moved     = "moved"
)

// gap is the time between two commits of a partition, one behind the other.
type gap struct {
	part     int32
	from, to time.Time
	class    string
	old, new process   // zero where no log names the claim's
	taken    time.Time // the new claim's takeover, from if no log tells
	loaded   time.Time // when its view was there, taken if it was kept
}

func (g gap) seconds() float64 { return g.to.Sub(g.from).Seconds() }

// overlaps reports whether the gap and [from, to] have a moment in common.
func (g gap) overlaps(from, to time.Time) bool { return g.from.Before(to) && g.to.After(from) }

// gaps are those of all partitions. events say who was frozen when.
func (t *trail) gaps(events []*event) []gap {
	var all []gap
	for i, b := range t.commits {
		if i == 0 || t.commits[i-1].part != b.part {
			continue
		}
		a := t.commits[i-1]
		g := gap{part: b.part, from: a.at, to: b.at, old: t.claims[a.claim], new: t.claims[b.claim]}
		switch {
		case a.epoch == b.epoch && slices.ContainsFunc(events, g.isFreeze):
			g.class = frozen
		case a.epoch == b.epoch:
			g.class = unmoved
		case g.old == g.new && g.old != process{}:
			g.class = reclaimed
		default:
			g.class = moved
		}
		t.stages(&g, b.claim)
		all = append(all, g)
	}
	return all
}

// stages notes what lay in a gap before the commit that ended it.
func (t *trail) stages(g *gap, c claim) {
	g.taken = g.from
	if at := t.taken[c]; g.class != unmoved && at.After(g.from) && at.Before(g.to) {
		g.taken = at
	}
	g.loaded = g.taken
	for _, at := range t.loaded[place{g.new, g.part}] {
		if g.class != unmoved && at.After(g.taken) && at.Before(g.to) {
			g.loaded = at
		}
	}
}

// isFreeze reports whether the event froze the gap's process in it.
func (g gap) isFreeze(e *event) bool {
	return e.Kind == freeze && g.old.pid == e.pid && g.overlaps(e.At, e.Till)
}

// window is how long behind an event its consequences may show: a frozen or killed
// member is missed after a session, then partitions are given out.
func window(session time.Duration) time.Duration { return session + 4*time.Second }

// touching are the gaps of a class in the window of an event.
func touching(gaps []gap, class string, events []*event, session time.Duration) []gap {
	return slices.DeleteFunc(slices.Clone(gaps), func(g gap) bool {
		return g.class != class || !slices.ContainsFunc(events, func(e *event) bool {
			return g.overlaps(e.At, e.At.Add(window(session)))
		})
	})
}

// within are the gaps of a class that end in a phase.
func within(gaps []gap, class string, ph phase) []gap {
	return slices.DeleteFunc(slices.Clone(gaps), func(g gap) bool {
		return g.class != class || g.to.Before(ph.from) || g.to.After(ph.to)
	})
}

// recoveries are, for each kill and each partition the process held, the time from
// the kill to the partition's first commit by another, over the session timeout.
// One that never came counts as long as it was waited for.
func (t *trail) recoveries(ph phase, session time.Duration) []float64 {
	var all []float64
	for _, e := range ph.events {
		for _, part := range e.held {
			back := ph.to
			for _, c := range t.of(part) {
				if c.at.After(e.At) && t.claims[c.claim].pid != e.pid {
					back = c.at
					break
				}
			}
			all = append(all, float64(back.Sub(e.At))/float64(session))
		}
	}
	return all
}

// Stages are where the seconds of gaps went.
type Stages struct {
	TakeoverP50 float64 `json:"until_takeover_p50"` // by the new owner
	TakeoverP99 float64 `json:"until_takeover_p99"`
	ViewP50     float64 `json:"loading_view_p50"` // from then until its view of the log was loaded
	ViewP99     float64 `json:"loading_view_p99"`
	CommitP50   float64 `json:"first_commit_p50"` // from then until the first commit
	CommitP99   float64 `json:"first_commit_p99"`
}

func stagesOf(gaps []gap) (s Stages) {
	var until, view, first []float64
	for _, g := range gaps {
		until = append(until, g.taken.Sub(g.from).Seconds())
		view = append(view, g.loaded.Sub(g.taken).Seconds())
		first = append(first, g.to.Sub(g.loaded).Seconds())
	}
	s.TakeoverP50, s.TakeoverP99 = quantile(until, 0.5), quantile(until, 0.99)
	s.ViewP50, s.ViewP99 = quantile(view, 0.5), quantile(view, 0.99)
	s.CommitP50, s.CommitP99 = quantile(first, 0.5), quantile(first, 0.99)
	return s
}

func seconds(gaps []gap) []float64 {
	var all []float64
	for _, g := range gaps {
		all = append(all, g.seconds())
	}
	return all
}

// quantile is the smallest value that a share q of the values does not exceed; 0
// of none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	values = slices.Sorted(slices.Values(values))
	return values[max(int(math.Ceil(q*float64(len(values))))-1, 0)]
}
