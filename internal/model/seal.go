package model

// seal is background work on the log: runs become a segment, segments become one.
// Any member may do it; it needs no claim.
func (w *World) seal(s *state, m int, n *successors) {
	k := &s.Members[m].Work
	switch k.Step {
	case noWork:
		w.register(s, m, n)
	case registered, halfWritten:
		if k.Compact {
			w.merge(s, m, n)
		} else {
			w.writeBlocks(s, m, n)
		}
	case complete:
		w.swap(s, m, n)
	case unanswered:
		w.reread(s, m, n)
	case swapped:
		w.tellView(s, m, n)
	case exactDropped: // the filter comes too late
		c := *s
		b := &c.Members[m]
		b.View.Filter |= k.Keys
		b.View.Manifest = k.Given
		b.Work.Step = learned
		n.step(&c, say("%d seals: filter has the keys", m))
	case learned:
		w.cleanUp(s, m, n)
	}
}

// register begins with a segment that nobody reads yet.
func (w *World) register(s *state, m int, n *successors) {
	a, d := &s.Members[m], &s.DB
	if !a.holds() && (!w.Sealer || m != members-1) {
		return
	}
	free := -1
	for i, g := range d.Segments {
		if g.State == absent {
			free = i
		}
	}
	if free < 0 || (a.View.State == usable && a.View.Manifest != d.Manifest) {
		return
	}
	c := *s
	k := &c.Members[m].Work
	c.DB.Segments[free] = segment{ID: fresh, State: building}
	*k = work{Step: registered, Segment: fresh, Manifest: d.Manifest}
	if s.Left.Seals > 0 && d.Head > d.Sealed {
		c.Left.Seals--
		k.From, k.To = d.Sealed, d.Head
		n.event(&c, say("%d seals: registers a segment for runs %d to %d", m, int(k.From)+1, int(k.To)))
		c.Left.Seals++
	}
	inputs := 0
	for i, g := range d.Segments {
		if g.State == live {
			k.Inputs[i] = g.ID
			inputs++
		}
	}
	if s.Left.Merges > 0 && inputs > 0 {
		c.Left.Merges--
		k.Compact, k.From, k.To = true, 0, 0
		n.event(&c, say("%d merges: registers a segment for %d others", m, inputs))
	}
}

// put adds blocks to a segment that is being built, if it is still there.
func (d *database) put(name id, ks keys) {
	if g := d.find(name); g != nil && g.State == building {
		g.Keys |= ks
	}
}

// writeBlocks writes the first run's keys in one transaction and the rest in another.
func (w *World) writeBlocks(s *state, m int, n *successors) {
	c := *s
	k := &c.Members[m].Work
	from, to := k.From, k.From+1
	if k.Step == halfWritten {
		from, to = k.From+1, k.To
	}
	var ks keys
	for i := from; i < to; i++ {
		if i >= s.DB.Head || s.DB.Runs[i].Pruned {
			*k = work{}
			n.step(&c, say("%d seals: a run is missing, gives up", m))
			return
		}
		ks |= s.DB.Runs[i].Keys
	}
	k.Keys |= ks
	c.DB.put(k.Segment, ks)
	k.Step = halfWritten
	if to == k.To {
		k.Step = complete
	}
	n.step(&c, say("%d seals: blocks of runs %d to %d", m, int(from)+1, int(to)))
}

// merge writes the blocks of all inputs.
func (w *World) merge(s *state, m int, n *successors) {
	c := *s
	k := &c.Members[m].Work
	for _, name := range k.Inputs {
		if name == 0 {
			continue
		}
		g := s.DB.find(name)
		if g == nil {
			if !w.has(LoadCounts) {
				continue
			}
			*k = work{}
			n.step(&c, say("%d merges: an input is gone, gives up", m))
			return
		}
		k.Keys |= g.Keys
	}
	c.DB.put(k.Segment, k.Keys)
	k.Step = complete
	n.step(&c, say("%d merges: blocks", m))
}

// swap makes the segment live under the log's lock: a new manifest, and what the
// segment stands for is sealed or dead.
func (w *World) swap(s *state, m int, n *successors) {
	if s.logLocked(w) {
		return
	}
	k := &s.Members[m].Work
	g := s.DB.find(k.Segment)
	whole := g != nil && g.State == building && count(g.Keys) == count(k.Keys)
	if (s.DB.Manifest != k.Manifest && w.has(SwapManifest)) || (!whole && w.has(SwapCounts)) {
		c := *s
		c.Members[m].Work = work{}
		n.step(&c, say("%d: its swap is refused", m))
		return
	}
	c := *s
	c.DB.swap(k)
	after := &c.Members[m].Work
	after.Given, after.Step = fresh, swapped
	n.step(&c, say("%d swaps", m))
	if s.Left.Unknown > 0 {
		c.Left.Unknown--
		after.Step = unanswered
		n.event(&c, say("%d swaps, no answer, committed", m))
		c.DB = s.DB
		n.event(&c, say("%d swaps, no answer, aborted", m))
	}
}

func (d *database) swap(k *work) {
	d.Manifest = fresh
	if !k.Compact {
		d.Sealed = k.To
	}
	for _, name := range k.Inputs {
		if g := d.find(name); g != nil && k.Compact {
			g.State = dead
		}
	}
	if g := d.find(k.Segment); g != nil {
		g.State = live
	}
}

// reread settles a swap without an answer. Until then the view keeps what it has.
func (w *World) reread(s *state, m int, n *successors) {
	c := *s
	k, v := &c.Members[m].Work, &c.Members[m].View
	switch {
	case s.DB.Manifest == k.Given:
		k.Step = swapped
	case !w.has(DoubtfulSwap) && v.State != unloaded && v.Manifest == k.Manifest && !k.Compact:
		v.Filter |= k.Keys
		v.Exact &^= k.Keys
		*k = work{}
	default:
		*k = work{}
	}
	n.step(&c, say("%d reads the manifest after its swap", m))
}

// tellView lets the member's own view follow its swap: filter first, then exactly
// the segment's keys leave the exact set. A view whose head is behind what is sealed
// now cannot tell a key of the segment from one of its log, and is dropped.
func (w *World) tellView(s *state, m int, n *successors) {
	c := *s
	k, v := &c.Members[m].Work, &c.Members[m].View
	k.Step = learned
	switch {
	case v.State == unloaded || v.Manifest != k.Manifest:
	case k.Compact:
		v.Filter |= k.Keys
		v.Manifest = k.Given
	case v.Head < k.To && w.has(SealBehind):
		*v = view{}
	case !w.has(FilterFirst):
		v.Exact &^= k.Keys
		k.Step = exactDropped
	default:
		v.Filter |= k.Keys
		v.Manifest = k.Given
		v.Exact &^= k.Keys
		if !w.has(DropOwnKeys) {
			v.Exact = 0
		}
	}
	n.step(&c, say("%d seals: its view follows", m))
}

// cleanUp removes what the swap made superfluous, by what the database says now.
func (w *World) cleanUp(s *state, m int, n *successors) {
	c := *s
	k, d := &s.Members[m].Work, &c.DB
	if k.Compact {
		for i := range d.Segments {
			g := &d.Segments[i]
			if g.State == dead || (!w.has(CleanByState) && g.State == live && k.input(g.ID)) {
				*g = segment{}
			}
		}
	} else {
		upTo := d.Sealed
		if !w.has(CleanBySealed) {
			upTo = min(k.To, d.Head)
		}
		for i := range d.Runs[:upTo] {
			d.Runs[i].Pruned, d.Runs[i].Keys = true, 0
		}
	}
	c.Members[m].Work = work{}
	n.step(&c, say("%d cleans up", m))
}

func (k *work) input(name id) bool {
	for _, in := range k.Inputs {
		if in != 0 && in == name {
			return true
		}
	}
	return false
}
