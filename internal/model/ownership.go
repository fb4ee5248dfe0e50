package model

// busy reports whether a transaction, open or unanswered, has a part of a claim.
func (a *member) busy(q int) bool { return a.Batch.Stage >= fenced && a.Batch.N[q] > 0 }

// drop forgets a claim with its queue. A batch that was only prepared is given up.
func (w *World) drop(a *member, q int) {
	if a.Batch.Stage == prepared {
		a.Batch = batch{}
	}
	if q < partitions && !w.has(QueueOfClaim) {
		a.Stray[q] = a.Claims[q].From
	}
	a.Claims[q] = claim{}
}

// revoke lets a member learn that it was to give up a partition, however late. What
// is in flight finishes or is fenced; the queue is dropped or, with HandOver, becomes
// one of a claim that is over as soon as it is empty or fenced.
func (w *World) revoke(s *state, m, p int, n *successors) {
	a := &s.Members[m]
	if a.Claims[p].Owner != 0 && s.Assigned[p] != uint8(m) {
		if !a.busy(p) {
			c := *s
			w.drop(&c.Members[m], p)
			n.step(&c, say("%d learns that partition %d was revoked, drops its queue", m, p))
		}
		if w.HandOver {
			w.handOver(s, m, p, n)
		}
	}
	if old := p + partitions; a.Claims[old].Owner != 0 && !a.busy(old) {
		c := *s
		w.drop(&c.Members[m], old)
		n.step(&c, say("%d drops the old queue of partition %d", m, p))
	}
}

// handOver keeps a revoked claim, with as much of the partition as its queue may
// hold, and with its part of the transaction in flight. One older still is dropped.
func (w *World) handOver(s *state, m, p int, n *successors) {
	a, old := &s.Members[m], p+partitions
	if a.busy(old) {
		return
	}
	least := a.Claims[p].From + max(a.Batch.N[p], 1)
	for end := least; end <= w.end(p); end++ {
		c := *s
		b := &c.Members[m]
		if b.Claims[old].Owner != 0 && b.Batch.N[old] > 0 {
			b.Batch = batch{}
		}
		b.Claims[old], b.Claims[p] = b.Claims[p], claim{}
		b.Claims[old].End = end
		b.Batch.N[old], b.Batch.N[p] = b.Batch.N[p], 0
		t := &c.Tx[m]
		t.Parts[old], t.Parts[p] = t.Parts[p], part{}
		if t.Late>>p&1 == 1 {
			t.Late ^= 1<<p | 1<<old
		}
		n.step(&c, say("%d learns that partition %d was revoked, goes on with its queue %d to %d", m, p, int(a.Claims[p].From), int(end)))
	}
}

// takeOver writes a new owner into the position row and begins where the row says.
func (w *World) takeOver(s *state, m, p int, n *successors) {
	a := &s.Members[m]
	if s.Assigned[p] != uint8(m) || a.Claims[p].Owner != 0 {
		return
	}
	if w.has(TakeoverWaits) && s.rowLocked(p, -1) {
		return
	}
	c := *s
	b := &c.Members[m]
	owner := fresh
	if !w.has(OwnerPerClaim) {
		if b.Once == 0 {
			b.Once = fresh
		}
		owner = b.Once
	}
	c.DB.Owner[p] = owner
	b.Claims[p] = w.newClaim(s, m, p, owner)
	if !w.has(NewCursorOwn) {
		b.mixCursors(p, s.DB.Next[p], w.end(p))
	}
	if b.View.State == usable && !a.others(p) && w.has(ReturnCatchesUp) {
		b.View.State = stale
	}
	n.step(&c, say("%d takes over partition %d at %d", m, p, int(s.DB.Next[p])))
	if a.Claims[p+partitions].Owner != 0 && b.View.State != unloaded {
		b.View = view{}
		n.step(&c, say("%d takes over partition %d at %d, loads a new view", m, p, int(s.DB.Next[p])))
	}
}

// mixCursors puts what the new claim's cursor fetches into the old claim's queue.
func (a *member) mixCursors(p int, next, end uint8) {
	old := p + partitions
	if held := &a.Claims[old]; held.Owner != 0 && a.Batch.N[old] == 0 && next > held.Next {
		held.From, held.End = next, end
	}
}

// others reports whether a member holds another partition than p, so that its view
// was in use all the time.
func (a *member) others(p int) bool {
	for q := range partitions {
		if q != p && a.Claims[q].Owner != 0 {
			return true
		}
	}
	return false
}

// newClaim begins at the row's position, unless a safeguard is missing.
func (w *World) newClaim(s *state, m, p int, owner id) claim {
	next := s.DB.Next[p]
	c := claim{Owner: owner, Next: next, From: next, End: w.end(p)}
	a := &s.Members[m]
	if gone := a.Stray[p]; !w.has(QueueOfClaim) && gone > next {
		c.From = gone
	}
	if old := a.Claims[p+partitions]; old.Owner != 0 && old.End > next {
		if !w.has(OldCursorEnds) {
			c.From = old.End
		}
		if !w.has(BeginAtRow) {
			c.Next, c.From = old.End, old.End
		}
	}
	return c
}

// watch compares the held rows with memory and drops what differs. A claim that was
// handed over is not held: the fence ends it.
func (w *World) watch(s *state, m int, n *successors) {
	a := &s.Members[m]
	if !w.has(Watch) {
		return
	}
	for p := range partitions {
		held := &a.Claims[p]
		if held.Owner == 0 || a.busy(p) {
			continue
		}
		if s.DB.Owner[p] == held.Owner && (s.DB.Next[p] == held.Next || !w.has(WatchNext)) {
			continue
		}
		c := *s
		b := &c.Members[m]
		w.drop(b, p)
		if b.Batch.Stage == none {
			b.View = view{}
		}
		n.step(&c, say("%d sees that the row of partition %d differs, drops its claim", m, p))
	}
}
