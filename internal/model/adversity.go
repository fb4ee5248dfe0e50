package model

// fail lets a copy of the database fall behind, at any commit, and take over later.
// What it lacks is gone, open transactions die, processes and their memory live on.
func (w *World) fail(s *state, n *successors) {
	c := *s
	switch s.Lag {
	case follows:
		c.Lag, c.Replica = lags, s.DB
		n.event(&c, say("the replica receives nothing any more"))
	case lags:
		if s.DB == s.Replica {
			return
		}
		c.Lag, c.DB, c.Replica = retired, s.Replica, database{}
		c.Tx = [members + 1]tx{}
		for m := range c.Members {
			if b := &c.Members[m].Batch; b.Stage == fenced {
				*b = batch{}
			}
		}
		n.event(&c, say("FAILOVER to the replica"))
	case retired:
	}
}

// finish lets the server end the transactions that nobody waits for.
func (w *World) finish(s *state, n *successors) {
	for i := range s.Tx {
		orphan := i == members && s.Tx[i].Stage != none
		if s.Tx[i].Stage == sent {
			c := *s
			c.Tx[i] = tx{}
			w.apply(&c, &s.Tx[i])
			n.step(&c, say("the server commits the pending transaction of %d", i))
			orphan = true
		}
		if orphan {
			c := *s
			c.Tx[i] = tx{}
			n.step(&c, say("the server aborts the pending transaction of %d", i))
		}
	}
}

// assign is the group: a partition goes to another member. A member that hangs loses
// its partitions as a matter of course, when its session ends.
func (w *World) assign(s *state, n *successors) {
	for p := range partitions {
		for m := range members {
			if !w.eligible(p, m) || m == int(s.Assigned[p]) || s.Members[m].Hung {
				continue
			}
			c := *s
			c.Assigned[p] = uint8(m)
			if s.Members[s.Assigned[p]].Hung {
				n.step(&c, say("the session of %d ends: partition %d assigned to %d", int(s.Assigned[p]), p, m))
			} else if s.Left.Rebalances > 0 {
				c.Left.Rebalances--
				n.event(&c, say("rebalance: partition %d assigned to %d", p, m))
			}
		}
	}
}

// die kills a member or lets it stand still for ever.
func (w *World) die(s *state, m int, n *successors) {
	a := &s.Members[m]
	if *a == (member{}) {
		return
	}
	if s.Left.Hangs > 0 && w.replaceable(m) {
		c := *s
		c.Left.Hangs--
		c.Members[m].Hung = true
		n.event(&c, say("%d stands still for ever", m))
	}
	if s.Left.Crashes == 0 {
		return
	}
	open := s.Tx[m].Stage != none
	if open && s.Tx[members].Stage != none {
		return // there is one place for orphans; this one has to end first
	}
	c := *s
	c.Left.Crashes--
	if open { // the server does not know yet
		c.Tx[members] = s.Tx[m]
		c.Tx[m] = tx{}
	}
	c.Members[m] = member{}
	n.event(&c, say("%d is killed", m))
}

// replaceable reports whether others may have everything that m may have.
func (w *World) replaceable(m int) bool {
	for p := range partitions {
		if w.Eligible[p] == 1<<m {
			return false
		}
	}
	return true
}

// terminate is what a takeover does to a backend that stands in its way.
func (w *World) terminate(s *state, m int, n *successors) {
	if !w.has(Terminate) {
		return
	}
	for p := range partitions {
		t := &s.Tx[m]
		if s.Assigned[p] == uint8(m) || t.Stage == none || t.Parts[p].N+t.Parts[p+partitions].N == 0 {
			continue
		}
		c := *s
		c.Tx[m] = tx{}
		c.Members[m].Batch = batch{}
		n.step(&c, say("the backend of %d is ended: it holds partition %d", m, p))
		return
	}
}
