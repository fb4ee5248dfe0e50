package model

import (
	"os"
	"strings"
	"testing"
	"time"
)

// room is more than any search of the tables comes to.
const room = 60_000_000

// look searches a world and prints what a reader of docs/model.md wants to know.
func look(t *testing.T, w *World) Result {
	t.Helper()
	began := time.Now()
	r := w.Search(room)
	t.Logf("%s %+v hand-over %v: %d states, %d transitions, depth %d, complete %v, %s %s",
		w.Name, w.Budget, w.HandOver, r.States, r.Transitions, r.Depth, r.Complete, time.Since(began).Round(time.Millisecond), verdict(r))
	return r
}

// verdict is the first word of what is broken, "ok" if all was seen and nothing is.
func verdict(r Result) string {
	switch word, _, _ := strings.Cut(r.Broken, ":"); {
	case word != "":
		return word
	case !r.Complete:
		return "incomplete"
	default:
		return "ok"
	}
}

// large reports whether the searches that take minutes and some GiB are wanted:
// make model.
func large() bool { return os.Getenv("EFFECTONCE_MODEL") == "large" }

// holding are the worlds in which every invariant holds.
func holding() []*World {
	ws := []*World{
		single(0, 0).with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1}),
		single(0, 1, 0).with(Budget{Rebalances: 1, Failovers: 1}),
		lane(0, 0).with(Budget{Rebalances: 2}),
		lane(0, 0).with(Budget{Rebalances: 1, Crashes: 1, Hangs: 1}),
		topic().with(Budget{Rebalances: 1, Failovers: 1}),
		topic().with(Budget{Rebalances: 1, Crashes: 1, Unknown: 1}),
		topic().with(Budget{Seals: 1, Unknown: 1}),
		sealer().with(Budget{Seals: 1, Failovers: 1}),
		single(0, 0).with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1}).handingOver(),
		single(0, 1).with(Budget{Rebalances: 1, Failovers: 1}).handingOver(),
		single(0, 1).with(Budget{Rebalances: 1, Crashes: 1, Hangs: 1}).handingOver(),
		lane(0, 0).with(Budget{Rebalances: 2}).handingOver(),
		topic().with(Budget{Rebalances: 2}).handingOver(),
	}
	if !large() {
		return ws
	}
	return append(ws,
		single(0, 1, 0).with(Budget{Rebalances: 2, Failovers: 1}),
		lane(0, 1, 0).with(Budget{Rebalances: 1, Failovers: 1}),
		lane(0, 1, 0).with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1}),
		lane(0, 0).with(Budget{Seals: 1, Failovers: 1}),
		lane(0, 0).with(Budget{Seals: 1, Rebalances: 1}),
		lane(0, 0).with(Budget{Seals: 1, Merges: 1, Rebalances: 1}),
		topic().with(Budget{Seals: 1, Failovers: 1}),
		topic().with(Budget{Seals: 1, Rebalances: 1}),
		topic().with(Budget{Seals: 2}),
		topic().with(Budget{Seals: 1, Merges: 1, Failovers: 1}),
		sealer().with(Budget{Seals: 1, Merges: 1, Failovers: 1}),
		single(0, 1).with(Budget{Rebalances: 2, Failovers: 1}).handingOver(),
		single(0, 0).with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1, Failovers: 1}).handingOver(),
		single(0, 1, 0).with(Budget{Rebalances: 2, Failovers: 1}).handingOver(),
		single(0, 1, 0).with(Budget{Rebalances: 3, Crashes: 1, Unknown: 1}).handingOver(),
		single(0, 1, 0).with(Budget{Rebalances: 2, Crashes: 1, Hangs: 1}).handingOver(),
		lane(0, 0).with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1}).handingOver(),
		lane(0, 0).with(Budget{Rebalances: 2, Failovers: 1}).handingOver(),
		lane(0, 0).with(Budget{Seals: 1, Rebalances: 1}).handingOver(),
		topic().with(Budget{Rebalances: 2, Crashes: 1, Unknown: 1}).handingOver(),
		single(0, 1).with(Budget{Seals: 1, Rebalances: 1, Failovers: 1}).handingOver(),
		topic().with(Budget{Rebalances: 2, Failovers: 1}).handingOver(),
		topic().with(Budget{Seals: 1, Rebalances: 1}).handingOver(),
	)
}

func TestTheProtocolHoldsInEveryReachableState(t *testing.T) {
	for _, w := range holding() {
		if r := look(t, w); verdict(r) != "ok" {
			t.Errorf("%s: %s\n%s", w.Name, r.Broken, strings.Join(r.Trace, "\n"))
		}
	}
}
