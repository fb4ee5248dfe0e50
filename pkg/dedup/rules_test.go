package dedup

import (
	"errors"
	"net"
	"testing"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// sealed is a world whose log 0 has keys 1 and 2 in a segment and 3 in a run, and a
// view of it without any filter, so that it asks the database about every key.
func sealedWorld(t *testing.T) (*world, *View) {
	t.Helper()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	v := w.load(0)
	w.write(v, 'a', 1, 2)
	w.seal(v)
	w.write(v, 'a', 3)
	return w, w.load(0)
}

// TestHitBeyondTheHead (V1): a seal that runs ahead of a view. The view is at run 2;
// another member appends key 4 and seals it. The view's look-up finds it, in a
// segment it knows nothing about: if that were a duplicate, and the database went
// back behind the other member's commit, the position would move past key 4 and
// nobody would ever apply it.
func TestHitBeyondTheHead(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	back := w.backup()
	o := w.load(0)
	w.write(o, 'b', 4)
	w.seal(o)
	var f Fold
	f.Reset(0)
	f.Add(fpOf(4))
	if f.Check(v) != 1 {
		t.Fatal("memory decided")
	}
	if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil {
		t.Fatal(err)
	}
	if !f.Open() {
		t.Fatalf("an answer under another manifest was taken: duplicate %v", f.Duplicate(0))
	}
	if v.Is(v.HeadID, o.manifest) {
		t.Error("the view took a manifest beyond its head")
	}
	back()
	w.knows(v, 10, map[int]bool{1: true, 2: true, 3: true})
	w.write(v, 'a', 4)
	w.exact(v)
}

// TestSealStopsAtItsHead (V1): a seal takes only runs that its view contains,
// whatever else the table has.
func TestSealStopsAtItsHead(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	w.write(w.load(0), 'b', 4)
	w.seal(v)
	if s := v.Stats(); s.Runs != 0 || s.Sealed != 3 {
		t.Errorf("%+v", s)
	}
	if err := w.catchUp(v, 0); err != nil {
		t.Fatal(err)
	}
	w.clean(v)
	w.exact(v)
	w.exact(w.load(0))
}

// TestSwapChecksEverything (V2): between the building of a segment and its swap the
// database went back, or somebody else was quicker. The swap must raise, change
// nothing, and take nothing out of memory.
func TestSwapChecksEverything(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		damage func(w *world, seg *Segment)
		want   string
		drop   bool // the log is another: the view goes
	}{
		{"the registration is lost", func(w *world, seg *Segment) {
			w.Exec(w.t, "DELETE FROM "+w.Relation("segments")+" WHERE id = $1", [16]byte(seg.ID))
		}, pgtx.CodeSegment, false},
		{"a block is lost", func(w *world, seg *Segment) {
			w.Exec(w.t, "DELETE FROM "+w.Relation("blocks")+" b USING (SELECT first FROM "+w.Relation("blocks")+
				" WHERE segment = $1 ORDER BY first DESC LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first", [16]byte(seg.ID))
		}, pgtx.CodeSegment, false},
		{"a key is lost", func(w *world, seg *Segment) {
			w.Exec(w.t, "UPDATE "+w.Relation("blocks")+" SET fingerprints = substr(fingerprints, 17) WHERE segment = $1", [16]byte(seg.ID))
		}, pgtx.CodeSegment, false},
		{"it was swept away", func(w *world, _ *Segment) {
			if _, err := w.store.Sweep(w.t.Context(), w.conn, patient, 0); err != nil {
				w.t.Fatal(err)
			}
		}, pgtx.CodeSegment, false},
		{"somebody else sealed", func(w *world, _ *Segment) { w.seal(w.load(0)) }, pgtx.CodeManifest, true},
		{"the log is closed", func(w *world, _ *Segment) {
			w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET state = 'closed'")
		}, pgtx.CodeLogClosed, true},
		{
			// Appends do not change the manifest: only the name of the run tells.
			"its last run is another now", func(w *world, _ *Segment) {
				w.Exec(w.t, "UPDATE "+w.Relation("runs")+" SET run_id = gen_random_uuid() WHERE seq = 2")
			}, pgtx.CodeLogMoved, true,
		},
		{"its last run is gone", func(w *world, _ *Segment) {
			w.Exec(w.t, "DELETE FROM "+w.Relation("runs")+" WHERE seq = 2")
		}, pgtx.CodeLogMoved, true},
		{"its run has no fingerprints", func(w *world, _ *Segment) {
			w.Exec(w.t, "UPDATE "+w.Relation("runs")+" SET fingerprints = NULL WHERE seq = 2")
		}, pgtx.CodeLogMoved, true},
		{"its run has other keys", func(w *world, _ *Segment) {
			w.Exec(w.t, "UPDATE "+w.Relation("runs")+" SET fingerprints = fingerprints || fingerprints WHERE seq = 2")
		}, pgtx.CodeLogMoved, true},
	} {
		w, v := sealedWorld(t)
		g := v.freeze()
		seg, err := w.store.write(t.Context(), w.conn, patient, v, g.keys.sorted(), g.head)
		if err != nil {
			t.Fatal(err)
		}
		v.cover(g.keys.sorted())
		c.damage(w, seg)
		before := w.logs()
		err = w.store.swap(t.Context(), w.conn, patient, v, &swap{segment: seg, gen: g})
		if pgtx.Code(err) != c.want || errors.Is(err, ErrDropView) != c.drop {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		after := w.logs()
		if len(before) != len(after) || before[0] != after[0] {
			t.Errorf("%s: the log changed", c.name)
		}
		if v.Keys() != 1 || v.pending != nil || v.Stats().Segments != 1 {
			t.Errorf("%s: memory changed: %+v", c.name, v.Stats())
		}
		if !c.drop {
			w.seal(v) // the next attempt
			w.exact(v)
			w.tidy(v)
		}
	}
}

// TestCompactionChecksItsInputs (V2): an input that is not live any more, or whose
// blocks are not all there although the manifest is what it was.
func TestCompactionChecksItsInputs(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *world, v *View){
		"a block was removed": func(w *world, v *View) {
			w.Exec(w.t, "DELETE FROM "+w.Relation("blocks")+" b USING (SELECT first FROM "+w.Relation("blocks")+
				" WHERE segment = $1 ORDER BY first ASC LIMIT 1) x WHERE b.segment = $1 AND b.first = x.first", [16]byte(v.segments[1].ID))
		},
		"an input is dead": func(w *world, v *View) {
			w.Exec(w.t, "UPDATE "+w.Relation("segments")+" SET state = 'dead' WHERE id = $1", [16]byte(v.segments[1].ID))
		},
	} {
		w, v := sealedWorld(t)
		w.seal(v)
		for n := range 5 {
			w.write(v, 'a', 10+n)
		}
		w.seal(v)
		damage(w, v)
		before := w.logs()
		_, err := w.store.Compact(t.Context(), w.conn, patient, v, nil)
		if err == nil {
			t.Errorf("%s: merged", name)
		}
		// The next attempt would find the same: the view is not at fault.
		if damaged := name == "a block was removed"; errors.Is(err, ErrDamaged) != damaged || damaged && errors.Is(err, ErrDropView) {
			t.Errorf("%s: %v", name, err)
		}
		if after := w.logs(); before[0] != after[0] {
			t.Errorf("%s: the log changed", name)
		}
	}
}

// TestCleanUpAfterALostSeal (V3): a seal, or a compaction, is lost by a failover
// before its clean-up ran. What was sealed and dead is the database's word, so
// nothing is removed.
func TestCleanUpAfterALostSeal(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	want := map[int]bool{1: true, 2: true, 3: true}
	w.clean(v)
	back := w.backup()
	w.seal(v)
	back()
	if n := w.clean(v); n != 0 {
		t.Errorf("%d rows were removed for a seal that did not happen", n)
	}
	w.knows(w.load(0), 10, want)

	v = w.load(0)
	w.seal(v)
	w.write(v, 'a', 4)
	want[4] = true
	w.seal(v)
	w.clean(v)
	back = w.backup()
	if w.compact(v) != 3 {
		t.Fatal("nothing merged")
	}
	back()
	if n := w.clean(v); n != 0 {
		t.Errorf("%d rows were removed for a compaction that did not happen", n)
	}
	w.knows(w.load(0), 10, want)
	if err := w.catchUp(v, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("the view has segments that the log has not: %v", err)
	}
}

// TestCleanedRunsProveNothing (V5): a member prepares at run 2; another one commits
// run 3, seals and cleans up. The rows are there, contiguous, without fingerprints.
func TestCleanedRunsProveNothing(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	o := w.load(0)
	w.write(o, 'b', 4)
	w.seal(o)
	w.clean(o)
	if err := w.append(t.Context(), w.conn, newRun(v, 'a', 4)); pgtx.Code(err) != pgtx.CodeLogMoved {
		t.Errorf("append: %v", err)
	}
	if err := w.catchUp(v, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("catch up: %v", err)
	}
	w.exact(w.load(0))
}

// TestOnlyDuplicatesCompareToo (V6): a batch that brings no new key rests on the
// view just as much.
func TestOnlyDuplicatesCompareToo(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	back := w.backup()
	w.write(v, 'a', 4)
	back() // run 3 is lost, and key 4 with it
	w.write(w.load(0), 'b', 5)
	if !w.known(v, 4)[4] {
		t.Fatal("the view forgot")
	}
	if err := w.append(t.Context(), w.conn, newRun(v, 'a')); pgtx.Code(err) != pgtx.CodeLogMoved {
		t.Errorf("a batch of duplicates: %v", err)
	}
}

// TestRebuildCounts: blocks are missing although the manifest is the view's, as
// after a compaction that was cleaned up and then lost.
func TestRebuildCounts(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	w.Exec(t, "DELETE FROM "+w.Relation("blocks"))
	if err := w.store.Rebuild(t.Context(), w.conn, patient, v, nil); !errors.Is(err, ErrDamaged) || errors.Is(err, ErrDropView) {
		t.Errorf("%v", err)
	}
	if s := v.Stats(); s.Ready != 0 || !s.Rebuild {
		t.Errorf("a gate without keys is in use: %+v", s)
	}
}

// TestRebuildUnderAnotherManifest: a slice of segments that died meanwhile is not
// believed, not even until the counts are compared at the end.
func TestRebuildUnderAnotherManifest(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	o := w.load(0)
	w.seal(o)
	for n := range 9 {
		w.write(o, 'b', 10+n)
	}
	w.seal(o)
	if w.compact(o) != 3 {
		t.Fatal("nothing merged")
	}
	w.clean(o)
	err := w.store.Rebuild(t.Context(), w.conn, patient, v, func(_, _ int64) {
		t.Errorf("a slice counts: %+v", v.Stats())
	})
	if !errors.Is(err, ErrDropView) {
		t.Errorf("%v", err)
	}
	if s := v.Stats(); s.Ready != 0 {
		t.Errorf("%+v", s)
	}
}

// TestLookUpAcrossOwnChanges: between Check and LookUp the view's own seal or
// compaction came true. The fold asked the segments that were live before; a dead
// one answers nothing, and that is not "new".
func TestLookUpAcrossOwnChanges(t *testing.T) {
	t.Parallel()
	for _, bare := range []bool{false, true} {
		w, v := sealedWorld(t)
		w.seal(v)
		w.write(v, 'a', 4)
		w.seal(v)
		if bare {
			v = w.load(0)
		} else {
			w.rebuild(v)
		}
		w.write(v, 'a', 5)
		for _, name := range []string{"seal", "compaction"} {
			change := func() { w.write(v, 'a', 60); w.seal(v) }
			if name == "compaction" {
				change = func() {
					if w.compact(v) != 3 {
						t.Fatal("nothing merged")
					}
				}
			}
			var f Fold
			f.Reset(0)
			for _, n := range []int{1, 2, 3, 4, 5} {
				f.Add(fpOf(n))
			}
			f.Check(v)
			change()
			if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil {
				t.Fatal(err)
			}
			if f.Open() {
				if bare {
					t.Errorf("%s: all segments were asked, and the view's own change is not accepted", name)
				}
				continue
			}
			for i := range 5 {
				if !f.Duplicate(i) {
					t.Errorf("bare %v: %s: key %d is new", bare, name, i+1)
				}
			}
		}
	}
}

// TestCatchUpReadsAnOldManifest: the log's row is read; before the answer is looked
// at, the view's own seal comes true. The manifest that was read is neither the
// view's any more nor a stranger's: a view is not dropped for that.
func TestCatchUpReadsAnOldManifest(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	l := &late{before: func() { w.seal(v) }}
	conn := w.through(func(c net.Conn) net.Conn {
		l.Conn = c
		return l
	})
	before := v.named()
	l.armed.Store(true)
	if err := w.store.CatchUp(t.Context(), conn, patient, w.id, w.part(0), v); err != nil {
		t.Errorf("catch up: %v", err)
	}
	if l.armed.Load() || v.named() == before {
		t.Error("nothing was sealed in between: the test shows nothing")
	}
	w.exact(v)
}

// TestLoadWhileSealing: a view is loaded, and behind each statement of it somebody
// seals everything, with and without cleaning up. It must never come out as a
// mixture of before and after.
func TestLoadWhileSealing(t *testing.T) {
	t.Parallel()
	const reading, last = 3, 8 // the log's row is read first, behind BEGIN and its settings, and last
	for _, clean := range []bool{false, true} {
		for behind := reading; behind <= last; behind++ {
			w, o := sealedWorld(t)
			p := &paused{world: w, behind: behind, do: func() {
				w.seal(o)
				if clean {
					w.clean(o)
				}
			}}
			conn := w.through(p.over)
			p.pid = conn.PgConn().PID()
			p.armed.Store(true)
			v, err := w.store.Load(t.Context(), conn, patient, w.id, w.part(0), nil)
			if err != nil {
				t.Errorf("behind statement %d: %v", behind, err)
				continue
			}
			if p.armed.Load() {
				t.Fatalf("nobody sealed behind statement %d: the test shows nothing", behind)
			}
			if behind < last && v.named() != o.named() {
				t.Errorf("behind statement %d: the view's manifest is of before", behind)
			}
			if behind == last {
				err := w.catchUp(v, 0)
				if v.named() != o.named() && !errors.Is(err, ErrDropView) {
					t.Errorf("sealed behind its back, and %v", err)
				}
				continue
			}
			w.exact(v)
		}
	}
}

// TestLoadOfManyRuns: where there are more unsealed runs than one statement reads, the
// log's row is read again behind the last of them.
func TestLoadOfManyRuns(t *testing.T) {
	t.Parallel()
	before := 0
	for reads := range int64(6) {
		w := newWorld(t, 1)
		o := w.load(0)
		for i := range page + 2 {
			w.write(o, 'm', i)
		}
		l := &late{before: func() { w.seal(o) }}
		conn := w.through(func(c net.Conn) net.Conn {
			l.Conn = c
			return l
		})
		l.skip.Store(reads)
		l.armed.Store(true)
		v, err := w.store.Load(t.Context(), conn, patient, w.id, w.part(0), nil)
		switch {
		case err != nil:
			t.Errorf("behind read %d: %v", reads, err)
		case l.armed.Load(): // it was done before
		case v.named() == o.named():
			before++
			w.exact(v)
		case !errors.Is(w.catchUp(v, 0), ErrDropView):
			t.Errorf("behind read %d: sealed behind its back, and it does not see it", reads)
		}
	}
	if before == 0 {
		t.Error("nobody sealed before the second reading: the test shows nothing")
	}
}

// TestGateAlwaysYes: effects stay exact with a gate that knows nothing, which makes
// every key a maybe. (A gate that says no to everything is not safe, and is why an
// image counts only with its digest: TestImage.)
func TestGateAlwaysYes(t *testing.T) {
	t.Parallel()
	w, v := sealedWorld(t)
	w.rebuild(v)
	for _, f := range []*Filter{v.gate, v.segments[0].filter} {
		for i := range f.words {
			f.words[i] = ^uint64(0)
		}
	}
	w.knows(v, 50, map[int]bool{1: true, 2: true, 3: true})
}

// TestUndecidedKeysAreNotNew: a fold with open questions answers none.
func TestUndecidedKeysAreNotNew(t *testing.T) {
	t.Parallel()
	_, v := sealedWorld(t)
	var f Fold
	f.Reset(0)
	f.Add(fpOf(1))
	f.Check(v)
	for name, ask := range map[string]func(){
		"winners":   func() { f.Winners(nil, 0, 1, func(int) bool { return false }, nil) },
		"duplicate": func() { f.Duplicate(0) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: an undecided key was taken for new", name)
				}
			}()
			ask()
		}()
	}
}

// TestLookUpAcrossTwoKeys: the bytes of a key stand across two others in a block.
// They are not that key; and where the key is there as well, it is found.
func TestLookUpAcrossTwoKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	a, b := Fingerprint{1: 7, 8: 9, 15: 3}, Fingerprint{0: 9, 7: 3, 8: 1, 12: 5}
	var across Fingerprint
	copy(across[:], a[8:])
	copy(across[8:], b[:8])
	after := Fingerprint{0: 1}
	for _, there := range []bool{false, true} {
		run := append(append([]byte{}, a[:]...), b[:]...)
		if there {
			w = newWorld(t, 1)
			v = w.load(0)
			run = append(run, across[:]...)
		}
		r := Run{View: v, ID: stream.UUID{1}, Fingerprints: run}
		if err := w.append(t.Context(), w.conn, r); err != nil {
			t.Fatal(err)
		}
		v.Learn(r.ID, run)
		w.seal(v)
		v = w.load(0)
		var f Fold
		f.Reset(0)
		f.Add(across)
		f.Add(after)
		f.Add(b)
		f.Check(v)
		if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil || f.Open() {
			t.Fatal(err)
		}
		if f.Duplicate(0) != there || f.Duplicate(1) || !f.Duplicate(2) {
			t.Errorf("there %v: %v %v %v", there, f.Duplicate(0), f.Duplicate(1), f.Duplicate(2))
		}
	}
}

// TestPrune: audit rows go in small steps, but for the one that proves a view whose
// runs are all sealed; what is young or not sealed stays.
func TestPrune(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	v := w.load(0)
	for n := range 7 {
		w.write(v, 'a', n+1)
	}
	w.seal(v)
	w.write(v, 'a', 8)
	idle := w.load(0)
	w.seal(v)
	w.write(v, 'a', 9)
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET committed_at = now() - interval '8 days' WHERE seq <> 3")
	prune := func() (total int64) {
		for {
			n, err := w.store.Prune(t.Context(), w.conn, patient, v.Log, 7*24*60*60*1e9)
			if err != nil {
				t.Fatal(err)
			}
			if total += n; n == 0 {
				return total
			}
		}
	}
	if n := prune(); n != 6 { // the third is young
		t.Errorf("%d rows pruned, want 6", n)
	}
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET committed_at = now() - interval '8 days'")
	if n := prune(); n != 1 {
		t.Errorf("%d rows pruned, want 1", n)
	}
	w.exact(w.load(0))
	if err := w.store.CatchUp(t.Context(), w.conn, patient, w.id, w.part(0), idle); !errors.Is(err, ErrDropView) {
		t.Errorf("a view that was sealed over by another: %v", err)
	}
	if err := w.catchUp(v, 0); err != nil {
		t.Errorf("the sealer's own view: %v", err)
	}
}
