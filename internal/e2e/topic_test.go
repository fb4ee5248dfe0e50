package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"effectonce/internal/pgproxytest"
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

// holdSQL is the lock of the topic's log.
const holdSQL = ".logs WHERE id = $1 FOR NO KEY UPDATE"

// A member's connection hangs where it holds the log that every member appends to.
// Its membership lives on, so nobody takes its partitions over, which would end the
// session: the others must get the log free.
func TestZombieHoldsTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 35)
	w.scatter("topic")
	a, b := w.start(), w.start()
	w.balanced()
	a.proxy.Arm(pgproxytest.HoldBehind, pgproxytest.Filter{SQL: holdSQL})
	w.produce(4_000, a.fired)
	w.exact("without the zombie", w.drained())
	if !strings.Contains(b.output(), "the log is locked by another session") {
		t.Error("the log came free without the zombie's backend being ended")
	}
}
