package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// In scope topic a key may come on any partition. Copies are sent to several at once,
// so that whoever holds them races for the key in the topic's one log; memory is for
// hardly any keys, so that each member seals and merges what all of them append.

// scatter sets the scope; in scope topic records are scattered over the partitions.
func (w *world) scatter(scope string) {
	w.scope = scope
	if scope == "topic" {
		w.stream.scatter = int(w.partitions)
	}
}

// topicHistory is two kills -9, a freeze and both cuts, in an order of the seed's.
func topicHistory(seed uint64) history {
	h := history{seed, 60_000, []string{"freeze", "kill", "kill", "cut before COMMIT", "cut after COMMIT"}, fenceSQL}
	rand.New(rand.NewPCG(seed, 3)).Shuffle(len(h.plan), func(i, j int) { h.plan[i], h.plan[j] = h.plan[j], h.plan[i] })
	return h
}

func TestLedgerTopic(t *testing.T) {
	const first = 60
	for seed := uint64(first); seed < first+seeds(t); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newWorld(t, 8, seed)
			w.scatter("topic")
			w.memory = 2
			w.mustBe(w.play(topicHistory(seed)))
			w.raced()
			w.merged()
		})
	}
}

// Where the table itself refuses a second row, members that race for a key meet its
// unique constraint before they meet the log. That is nobody's fault: the later copy
// is a duplicate like any other.
func TestLedgerTopicUnique(t *testing.T) {
	const first = 80
	for seed := uint64(first); seed < first+seeds(t); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			w := newWorld(t, 8, seed)
			w.scatter("topic")
			w.memory = 2
			w.db.Exec(t, "ALTER TABLE "+w.effects+" ADD UNIQUE (event_id)")
			w.mustBe(w.play(history{seed, 36_000, []string{"kill", "cut after COMMIT", "freeze"}, fenceSQL}))
			w.raced()
			for _, m := range w.members {
				if m.running() && m.metric(`effectonce_partitions{state="stopped"}`) != 0 {
					t.Errorf("%s has stopped a partition", m.name)
				}
			}
		})
	}
}

// raced requires that the history was what it is meant to be: members met each
// other's keys between check and commit, and keys were sealed.
func (w *world) raced() {
	w.t.Helper()
	if w.overtaken == 0 {
		w.t.Error("no member was overtaken")
	}
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("logs") + " WHERE sealed > 0"); n == 0 {
		w.t.Error("nothing was sealed")
	}
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("logs")); n != 1 {
		w.t.Errorf("%d logs of one topic", n)
	}
	if n := w.number("SELECT count(*) FROM " + w.effects); n != int64(w.stream.made-w.stream.made/10) {
		w.t.Errorf("%d effects of %d events, a tenth of them repeats", n, w.stream.made)
	}
}
