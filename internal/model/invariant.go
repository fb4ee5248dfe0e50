package model

// broken says which invariant a state breaks, or nothing.
func (w *World) broken(s *state) string {
	switch s.Fault {
	case doubled:
		return "DOUBLED: a key has two effects"
	case reordered:
		return "REORDERED: an effect came after that of a later record"
	case endless:
		return "ENDLESS: more commits than there are records"
	case noFault:
	}
	applied := w.applied(&s.DB)
	for p := range partitions {
		for o := range s.DB.Next[p] {
			if applied&w.key(p, o) == 0 {
				return "LOST: a position is behind a record whose key has no effect"
			}
		}
	}
	if len(w.Missing) > 0 { // the rest is how, not what: without a safeguard only effects count
		return ""
	}
	return w.brokenLog(s, applied)
}

// brokenLog is about what the effects rest on: the log, and memory that names it.
func (w *World) brokenLog(s *state, applied keys) string {
	logged := s.DB.logged()
	if logged != applied {
		return "LOG: its keys are not those that were applied"
	}
	for m := range s.Members {
		v := &s.Members[m].View
		if v.State != usable || v.Head != s.DB.Head || v.HeadID != s.DB.headID() {
			continue
		}
		if logged&^(v.Exact|v.Filter) != 0 {
			return "VIEW: it lacks a key of the log it names"
		}
		if v.Exact&^applied != 0 {
			return "VIEW: it has a key that the log it names has not"
		}
	}
	return ""
}

// done is the goal: every record is applied, and nothing is open.
func (w *World) done(s *state) bool {
	for p := range partitions {
		if s.DB.Next[p] < w.end(p) {
			return false
		}
	}
	for i := range s.Tx {
		if s.Tx[i].Stage != none {
			return false
		}
	}
	return true
}
