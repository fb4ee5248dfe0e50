package model

func (a *member) holds() bool {
	for q := range a.Claims {
		if a.Claims[q].Owner != 0 {
			return true
		}
	}
	return false
}

// learn gives the view the runs behind its head, which end in that of the log.
func (v *view) learn(d *database, ks keys) {
	v.Exact |= ks
	v.Head, v.HeadID = d.Head, d.headID()
}

// at reports whether the view's head is the one that the batch was checked under.
func (v *view) at(b *batch) bool {
	return v.State == usable && v.Head == b.Head && v.HeadID == b.HeadID
}

// suspect makes the view catch up before it is used again.
func (v *view) suspect() {
	if v.State != unloaded {
		v.State = stale
	}
}

// catchUp learns the runs behind a view's head, or drops the view.
func (w *World) catchUp(s *state, m int, n *successors) {
	a := &s.Members[m]
	if a.View.State != stale || !a.holds() {
		return
	}
	c := *s
	v := &c.Members[m].View
	v.State = usable
	same := v.Head == s.DB.Head && v.HeadID == s.DB.headID() && v.Manifest == s.DB.Manifest
	if !same {
		ks, proven := w.between(&s.DB, v.Head, v.HeadID)
		if !proven {
			*v = view{}
			n.step(&c, say("%d: its view is of another log, dropped", m))
			return
		}
		v.learn(&s.DB, ks)
	}
	n.step(&c, say("%d: its view has caught up to %d", m, int(v.Head)))
}

// load brings a view into memory: the log's row, its runs, its segments, the row
// again. It may go on while a transaction of the member is open.
func (w *World) load(s *state, m int, n *successors) {
	a := &s.Members[m]
	if a.View.State != unloaded || !w.wantsView(s, m) {
		return
	}
	c := *s
	b := &c.Members[m]
	l := &b.Load
	switch l.Step {
	case noLoad:
		*l = load{Step: rowRead, Head: s.DB.Head, HeadID: s.DB.headID(), Manifest: s.DB.Manifest, Sealed: s.DB.Sealed}
		n.step(&c, say("%d loads: log row, head %d", m, int(l.Head)))
	case rowRead:
		w.loadRuns(s, m, n)
	case runsRead:
		for i, g := range s.DB.Segments {
			if g.State == live {
				l.Segments[i] = g.ID
			}
		}
		l.Step = segmentsListed
		n.step(&c, say("%d loads: list of segments", m))
	case segmentsListed:
		w.loadSegments(s, m, n)
	case allRead:
		if s.DB.Manifest == l.Manifest || !w.has(LoadTwice) {
			b.View = view{usable, l.Head, l.HeadID, l.Manifest, l.Exact, l.Filter}
		}
		*l = load{}
		n.step(&c, say("%d loads: second reading, the view's head is %d", m, int(b.View.Head)))
	}
}

// wantsView reports whether a member has a reason to load one: a claim.
func (w *World) wantsView(s *state, m int) bool {
	if s.Members[m].holds() {
		return true
	}
	return !w.has(TakeoverFirst) && (s.Assigned[0] == uint8(m) || s.Assigned[1] == uint8(m))
}

// loadRuns reads the unsealed runs. A view may run at once, without a filter: then
// it asks Postgres for every key that it does not have.
func (w *World) loadRuns(s *state, m int, n *successors) {
	c := *s
	l := &c.Members[m].Load
	proven := s.DB.Head >= l.Head && (l.Head == 0 || !w.has(NamedHead) || s.DB.Runs[l.Head-1].ID == l.HeadID)
	for i := l.Sealed; i < min(l.Head, s.DB.Head); i++ {
		proven = proven && !s.DB.Runs[i].Pruned
		l.Exact |= s.DB.Runs[i].Keys
	}
	if !proven {
		*l = load{}
		n.step(&c, say("%d loads: runs are missing, again", m))
		return
	}
	if !w.seals() { // no segments, no filter
		l.Step = allRead
		n.step(&c, say("%d loads: runs", m))
		return
	}
	l.Step = runsRead
	n.step(&c, say("%d loads: runs", m))
	l.Step, l.Filter = allRead, ^keys(0)
	n.step(&c, say("%d loads: runs, goes on without a filter", m))
}

// loadSegments fills the filter from the blocks of the segments listed.
func (w *World) loadSegments(s *state, m int, n *successors) {
	c := *s
	l := &c.Members[m].Load
	whole := true
	for _, name := range l.Segments {
		switch g := s.DB.find(name); {
		case name == 0:
		case g == nil || g.State == building:
			whole = false
		case w.has(ImageDigest):
			l.Filter |= g.Keys
		}
	}
	if !whole && w.has(LoadCounts) {
		*l = load{}
		n.step(&c, say("%d loads: a segment's count differs, again", m))
		return
	}
	l.Step, l.Segments = allRead, [maxSegments]id{}
	n.step(&c, say("%d loads: blocks", m))
}
