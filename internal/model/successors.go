package model

import "fmt"

// successors collects what may come next after a state.
type successors struct {
	list []successor
}

type successor struct {
	state state
	fair  bool // comes to pass if nothing else does
	text  label
}

// step adds what the protocol does next by itself.
func (n *successors) step(s *state, text label) {
	n.list = append(n.list, successor{state: *s, fair: true, text: text})
}

// event adds what may happen and may as well not.
func (n *successors) event(s *state, text label) {
	n.list = append(n.list, successor{state: *s, text: text})
}

// label is a sentence that is only made where somebody reads it.
type label struct {
	format string
	args   [4]int
	n      int
}

func say(format string, args ...int) label {
	l := label{format: format, n: len(args)}
	copy(l.args[:], args)
	return l
}

func (l label) String() string {
	args := make([]any, l.n)
	for i := range args {
		args[i] = l.args[i]
	}
	return fmt.Sprintf(l.format, args...)
}

// next lists everything that may come next after s.
func (w *World) next(s *state, n *successors) {
	n.list = n.list[:0]
	if s.Fault != noFault {
		return
	}
	w.fail(s, n)
	w.finish(s, n)
	w.assign(s, n)
	for m := range members {
		if s.Members[m].Hung {
			w.terminate(s, m, n)
			continue
		}
		w.die(s, m, n)
		for p := range partitions {
			w.revoke(s, m, p, n)
			w.takeOver(s, m, p, n)
		}
		w.watch(s, m, n)
		w.catchUp(s, m, n)
		w.load(s, m, n)
		w.prepare(s, m, n)
		w.fence(s, m, n)
		w.write(s, m, n)
		w.commit(s, m, n)
		w.resolve(s, m, n)
		w.seal(s, m, n)
	}
}
