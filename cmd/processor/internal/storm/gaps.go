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
	old, new process // zero where no log names the claim's
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
		all = append(all, g)
	}
	return all
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
