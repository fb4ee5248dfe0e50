package model

import "math/bits"

// prepare takes ready queues into a batch, one record of each or all it has, and
// checks their keys against the view. A partition is in a batch once at most.
func (w *World) prepare(s *state, m int, n *successors) {
	a := &s.Members[m]
	if a.Batch.Stage != none || a.View.State != usable || !a.holds() {
		return
	}
	w.choose(s, m, 0, batch{}, n)
}

// choose goes through the claims from q on, and through what to take of each.
func (w *World) choose(s *state, m, q int, b batch, n *successors) {
	if q == claims {
		if b.N != [claims]uint8{} {
			w.check(s, m, b, n)
		}
		return
	}
	w.choose(s, m, q+1, b, n)
	held := &s.Members[m].Claims[q]
	if held.Owner == 0 || held.From >= held.End || (q >= partitions && b.N[q-partitions] > 0) {
		return
	}
	b.N[q] = 1
	w.choose(s, m, q+1, b, n)
	if rest := held.End - held.From; rest > 1 {
		b.N[q] = rest
		w.choose(s, m, q+1, b, n)
	}
}

// check finds a batch's duplicates: in memory, and by a look-up where the filter
// says maybe.
func (w *World) check(s *state, m int, b batch, n *successors) {
	a := &s.Members[m]
	v := &a.View
	var ks keys
	for q := range claims {
		for o := range b.N[q] {
			ks |= w.key(q%partitions, a.Claims[q].From+o)
		}
	}
	c := *s
	b.Stage, b.Head, b.HeadID = prepared, v.Head, v.HeadID
	b.Dup = ks & v.Exact
	if maybe := ks & v.Filter &^ v.Exact; maybe != 0 {
		if v.Manifest != s.DB.Manifest && w.has(LookUpManifest) {
			c.Members[m].View = view{}
			n.step(&c, say("%d: its look-up ran under another manifest, view dropped", m))
			return
		}
		b.Dup |= maybe & s.DB.sealedKeys()
	}
	c.Members[m].Batch = b
	n.step(&c, say("%d prepares keys %d, duplicates %d, view at %d", m, int(ks), int(b.Dup), int(v.Head)))
}

// fence begins the transaction: it locks the position rows and compares each with
// what the claim expects.
func (w *World) fence(s *state, m int, n *successors) {
	a := &s.Members[m]
	if a.Batch.Stage != prepared {
		return
	}
	var failed uint8
	t := tx{Stage: fenced}
	for q := range claims {
		if a.Batch.N[q] == 0 {
			continue
		}
		p, held := q%partitions, &a.Claims[q]
		if s.rowLocked(p, m) {
			return
		}
		if (w.has(FenceOwner) && s.DB.Owner[p] != held.Owner) || (w.has(FenceNext) && s.DB.Next[p] != held.Next) {
			failed |= 1 << q
		}
		t.Parts[q] = part{From: held.From, N: a.Batch.N[q]}
	}
	c := *s
	if failed != 0 && w.has(GuardsRaise) {
		w.endFenced(s, &c, m, failed)
		n.step(&c, say("%d is fenced, claims %b", m, int(failed)))
		return
	}
	t.Late = failed
	c.Tx[m] = t
	c.Members[m].Batch.Stage = fenced
	n.step(&c, say("%d BEGIN, the fence lets it pass", m))
}

// endFenced drops the claims that a fence refused.
func (w *World) endFenced(s, c *state, m int, failed uint8) {
	b := &c.Members[m]
	b.Batch = batch{}
	for q := range claims {
		switch {
		case failed>>q&1 == 0:
		case q >= partitions && !w.has(FencedEnds):
			b.Claims[q].Next = s.DB.Next[q%partitions]
		default:
			w.drop(b, q)
		}
	}
}

// write applies the effect, then locks the log, compares its head with the view's
// and appends the run of what was applied.
func (w *World) write(s *state, m int, n *successors) {
	a, d := &s.Members[m], &s.DB
	if a.Batch.Stage != fenced || s.Tx[m].Stage != fenced || s.logLocked(w) {
		return
	}
	c := *s
	b, t := &c.Members[m], &c.Tx[m]
	for q := range claims {
		pt := &t.Parts[q]
		for o := pt.From; o < pt.From+pt.N; o++ {
			if k := w.key(q%partitions, o); k&(a.Batch.Dup|t.Keys) == 0 { // a repeat inside the batch is folded
				t.Keys |= k
				pt.Applied |= 1 << o
			}
		}
	}
	learned, proven := keys(0), true
	if !w.sameLog(d, &a.Batch, t.Keys) {
		learned, proven = w.between(d, a.Batch.Head, a.Batch.HeadID)
	}
	switch {
	case !proven:
		*t, b.Batch, b.View = tx{}, batch{}, view{}
		n.step(&c, say("%d: the log is another one: ROLLBACK, view dropped", m))
	case learned&t.Keys != 0:
		if b.View.at(&a.Batch) {
			b.View.learn(d, learned)
		} else {
			b.View.suspect()
		}
		*t, b.Batch = tx{}, batch{}
		n.step(&c, say("%d: the log has moved, with a key of the batch: ROLLBACK, learns", m))
	default:
		t.Learn, t.Stage = learned, written
		n.step(&c, say("%d applies keys %d, holds the log at %d, writes its run", m, int(t.Keys), int(d.Head)))
	}
}

// sameLog is the compare.
func (w *World) sameLog(d *database, b *batch, applies keys) bool {
	switch {
	case !w.has(LogCompare), applies == 0 && !w.has(CompareAlways):
		return true
	case !w.has(NamedHead):
		return b.Head == d.Head
	default:
		return b.Head == d.Head && b.HeadID == d.headID()
	}
}

// commit ends the transaction. The answer comes or not; the connection may break
// before the server has read the COMMIT.
func (w *World) commit(s *state, m int, n *successors) {
	a, t := &s.Members[m], &s.Tx[m]
	if a.Batch.Stage != fenced || t.Stage != written {
		return
	}
	c := *s
	b := &c.Members[m]
	c.Tx[m], b.Batch = tx{}, batch{}
	w.apply(&c, t)
	w.advance(b, &a.Batch)
	switch v := &b.View; {
	case v.at(&a.Batch), v.State == usable && !w.has(LearnInOrder):
		v.learn(&c.DB, t.Keys|t.Learn)
	default:
		v.suspect()
	}
	n.step(&c, say("%d COMMIT, run %d with keys %d", m, int(c.DB.Head), int(t.Keys)))

	c = *s
	c.Tx[m], c.Members[m].Batch = tx{}, batch{}
	n.event(&c, say("%d loses its connection before COMMIT", m))
	if s.Left.Unknown > 0 {
		c = *s
		c.Left.Unknown--
		c.Tx[m].Stage, c.Members[m].Batch.Stage = sent, sent
		n.event(&c, say("%d COMMIT, no answer", m))
	}
}

// apply is what the server does at COMMIT: effects, positions and run become visible
// together.
func (w *World) apply(c *state, t *tx) {
	d, ks := &c.DB, w.applied(&c.DB)
	for q := range claims {
		p, pt := q%partitions, &t.Parts[q]
		if pt.N == 0 {
			continue
		}
		for o := range w.end(p) {
			if pt.Applied>>o&1 == 0 {
				continue
			}
			if ks&w.key(p, o) != 0 {
				c.Fault = doubled
			} else if d.Applied[p]>>o != 0 {
				c.Fault = max(c.Fault, reordered)
			}
			ks |= w.key(p, o)
			d.Applied[p] |= 1 << o
		}
		if t.Late>>q&1 == 0 {
			d.Next[p] = pt.From + pt.N
		}
	}
	if d.Head == maxRuns {
		c.Fault = max(c.Fault, endless)
		return
	}
	d.Runs[d.Head] = run{ID: fresh, Keys: t.Keys}
	d.Head++
}

// advance moves the claims of a committed batch. A queue that was handed over is
// done when it is empty.
func (w *World) advance(a *member, b *batch) {
	for q := range claims {
		held := &a.Claims[q]
		if b.N[q] == 0 {
			continue
		}
		held.From += b.N[q]
		held.Next = held.From
		if q >= partitions && held.From >= held.End {
			*held = claim{}
		}
	}
}

// resolve settles a COMMIT without an answer: it waits for the rows' locks, that is
// for the server, and reads where the positions are.
func (w *World) resolve(s *state, m int, n *successors) {
	a := &s.Members[m]
	if a.Batch.Stage != sent {
		return
	}
	if !w.has(DoubtAsks) {
		w.believe(s, m, n)
		return
	}
	ours, done, undone := true, true, true
	for q := range claims {
		if a.Batch.N[q] == 0 {
			continue
		}
		p, held := q%partitions, &a.Claims[q]
		if s.rowLocked(p, -1) {
			return
		}
		ours = ours && s.DB.Owner[p] == held.Owner
		done = done && s.DB.Next[p] == held.From+a.Batch.N[q]
		undone = undone && s.DB.Next[p] == held.Next
	}
	c := *s
	b := &c.Members[m]
	b.Batch = batch{}
	switch {
	case ours && done:
		w.advance(b, &a.Batch)
		if w.has(DoubtCatchesUp) {
			b.View.suspect()
		}
		n.step(&c, say("%d resolves: committed", m))
	case ours && undone:
		n.step(&c, say("%d resolves: not committed", m))
	default:
		w.giveUp(b, &a.Batch, ours)
		n.step(&c, say("%d resolves: fenced, or the database went back", m))
	}
}

// giveUp drops the claims of a batch whose rows are not as expected.
func (w *World) giveUp(b *member, batch *batch, ours bool) {
	for q := range claims {
		if batch.N[q] > 0 {
			w.drop(b, q)
		}
	}
	if ours {
		b.View = view{} // the database went back
	} else {
		b.View.suspect()
	}
}

// believe takes an unanswered COMMIT as done.
func (w *World) believe(s *state, m int, n *successors) {
	if s.Tx[m].Stage != none && s.Tx[members].Stage != none {
		return
	}
	c := *s
	b := &c.Members[m]
	if s.Tx[m].Stage != none {
		c.Tx[members], c.Tx[m] = s.Tx[m], tx{}
	}
	w.advance(b, &s.Members[m].Batch)
	b.View.suspect()
	b.Batch = batch{}
	n.step(&c, say("%d takes its COMMIT as done", m))
}

func count(ks keys) int { return bits.OnesCount8(ks) }
