package model

import (
	"slices"
	"testing"
)

// Two states that differ in the ids drawn alone are one; two in which another id is
// equal to another are not.
func TestStatesThatDifferInIdsAloneAreOne(t *testing.T) {
	at := func(owner, claimed, head id) state {
		var s state
		s.DB.Owner[0] = owner
		s.DB.Runs[0], s.DB.Head = run{ID: head}, 1
		s.Members[1].Claims[0].Owner = claimed
		s.rename()
		return s
	}
	if at(7, 7, 9) != at(3, 3, 3) {
		t.Error("other ids for the same owner and the same run made another state")
	}
	if at(7, 7, 9) == at(7, 8, 9) {
		t.Error("a claim that is fenced is the same state as one that is not")
	}
	once := at(7, 8, 9)
	again := once
	again.rename()
	if once != again {
		t.Error("renaming twice is another state")
	}
}

// What a search finds is shortest, its trace leads there, and the search after it
// finds as many states: nothing depends on the seeds.
func TestASearchCanBeRepeated(t *testing.T) {
	w := lane(0, 0).without(LogCompare)
	first, second := w.Search(room), w.Search(room)
	if !slices.Equal(first.Trace, second.Trace) || first.States != second.States {
		t.Errorf("two searches differ: %v, %v", first, second)
	}
	if len(first.Trace) != first.Depth {
		t.Errorf("a trace of %d steps to a state at depth %d", len(first.Trace), first.Depth)
	}
}

func TestASearchStopsAtItsLimit(t *testing.T) {
	w := lane(0, 0).with(Budget{Rebalances: 2})
	if r := w.Search(1000); r.Complete || r.Broken != "" || r.States < 1000 {
		t.Errorf("got %v", r)
	}
}

// Where everything is applied without adversity, every record has its effect but for
// the repeats.
func TestTheGoalIsReached(t *testing.T) {
	w := single(0, 1, 0)
	var n successors
	s := w.begin()
	for !w.done(&s) {
		w.next(&s, &n)
		i := slices.IndexFunc(n.list, func(c successor) bool { return c.fair })
		if i < 0 {
			t.Fatalf("no step from %+v", s)
		}
		s = n.list[i].state
		s.rename()
	}
	if s.DB.Applied[0] != 0b011 || s.DB.Next[0] != 3 {
		t.Errorf("applied %b, position %d", s.DB.Applied[0], s.DB.Next[0])
	}
}
