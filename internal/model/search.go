package model

import (
	"hash/maphash"
	"slices"
)

// Result is what a search found.
type Result struct {
	States, Transitions, Depth int
	Complete                   bool     // every reachable state was seen
	Broken                     string   // the invariant that does not hold; empty if all do
	Trace                      []string // the shortest way to break it
}

// digest stands for a state: 128 bits of it, by two hashes with seeds of their own.
// With ten million states the chance that any two share one, and one is missed, is
// about 10^-25; the seeds differ from run to run, so no miss is repeated.
type digest [2]uint64

// search goes through the states breadth first, so what it finds first is shortest.
type search struct {
	world *World
	seeds [2]maphash.Seed
	seen  map[digest]uint32 // its number, in the order found
	from  []uint32          // by number: where it was first reached from
	goal  []bool            // by number: the goal, later also whether it can be reached
	steps []uint32          // fair ones, by source
	first []int             // by number: where its steps begin
	moves int
}

// Search looks at every state that can be reached, up to a limit, and stops at the
// first that breaks an invariant. After a complete search it says too whether from
// every state fair steps, without more adversity, lead to everything being applied;
// one from where they do not is STUCK.
func (w *World) Search(limit int) Result {
	x := &search{
		world: w,
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()},
		seen:  map[digest]uint32{},
	}
	begin := w.begin()
	begin.rename()
	x.note(&begin, 0)
	layer, depth := []state{begin}, 0
	broken, at := "", uint32(0)
	for len(layer) > 0 && broken == "" && len(x.seen) < limit {
		layer, broken, at = x.expand(layer)
		depth++
	}
	complete := len(layer) == 0 && broken == ""
	if complete {
		broken, at = x.stuck()
	}
	r := Result{States: len(x.seen), Transitions: x.moves, Depth: depth, Complete: complete, Broken: broken}
	if broken != "" {
		r.Trace = x.trace(&begin, at)
	}
	return r
}

func (x *search) digest(s *state) digest {
	return digest{maphash.Comparable(x.seeds[0], *s), maphash.Comparable(x.seeds[1], *s)}
}

// note gives a state its number, and says whether it is new.
func (x *search) note(s *state, from uint32) (number uint32, isNew bool) {
	d := x.digest(s)
	if number, found := x.seen[d]; found {
		return number, false
	}
	number = uint32(len(x.from))
	x.seen[d] = number
	x.from = append(x.from, from)
	x.goal = append(x.goal, x.world.done(s))
	return number, true
}

// expand returns the states that are first reached from those of a layer, which are
// the last that were numbered.
func (x *search) expand(layer []state) (next []state, broken string, at uint32) {
	var n successors
	base := uint32(len(x.from) - len(layer))
	for i := range layer {
		me := base + uint32(i)
		x.first = append(x.first, len(x.steps))
		x.world.next(&layer[i], &n)
		for k := range n.list {
			s := &n.list[k].state
			s.rename()
			x.moves++
			number, isNew := x.note(s, me)
			if n.list[k].fair && number != me {
				x.steps = append(x.steps, number)
			}
			if !isNew {
				continue
			}
			if broken := x.world.broken(s); broken != "" {
				return nil, broken, number
			}
			next = append(next, *s)
		}
	}
	return next, "", 0
}

// stuck looks for a state from which fair steps do not lead to the goal, going
// backwards from the states that do.
func (x *search) stuck() (broken string, at uint32) {
	x.first = append(x.first, len(x.steps))
	reaches := x.goal
	for more := true; more; {
		more = false
		for i := len(reaches) - 1; i >= 0; i-- {
			if reaches[i] {
				continue
			}
			for _, to := range x.steps[x.first[i]:x.first[i+1]] {
				if reaches[to] {
					reaches[i], more = true, true
					break
				}
			}
		}
	}
	for i, ok := range reaches {
		if !ok {
			return "STUCK: no way to the rest of the records", uint32(i)
		}
	}
	return "", 0
}

// trace walks to a state again and notes each step's words.
func (x *search) trace(begin *state, at uint32) (words []string) {
	var path []uint32
	for ; at != 0; at = x.from[at] {
		path = append(path, at)
	}
	var n successors
	s := *begin
	for _, want := range slices.Backward(path) {
		x.world.next(&s, &n)
		for k := range n.list {
			c := &n.list[k].state
			c.rename()
			if number, isNew := x.note(c, 0); !isNew && number == want {
				words = append(words, n.list[k].text.String())
				s = *c
				break
			}
		}
	}
	return words
}
