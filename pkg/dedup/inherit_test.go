package dedup

import (
	"errors"
	"sync"
	"testing"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// heirs is a topic log with keys 1 to 16 in four segments and 17 in a run, and the
// view of a member that made them, with its gate.
func heirs(t *testing.T) (*world, *View, map[int]bool) {
	t.Helper()
	w := newTopicWorld(t)
	v, want := w.load(WholeTopic), map[int]bool{}
	for n := 1; n <= 16; n++ {
		want[n] = true
		w.write(v, 'a', n)
		if n%4 == 0 {
			w.seal(v)
		}
	}
	w.write(v, 'a', 17)
	want[17] = true
	if v.gate == nil || v.Stats().Segments != 4 {
		t.Fatalf("%+v", v.Stats())
	}
	return w, v, want
}

// reload is what a member does whose view was dropped.
func (w *world) reload(old *View) *View {
	w.t.Helper()
	v, err := w.store.Load(w.t.Context(), w.conn, patient, w.id, w.part(WholeTopic), old)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

// expire drops the oldest segment, as retention does.
func (w *world) expire(v *View) {
	w.t.Helper()
	if err := w.store.swap(w.t.Context(), w.conn, patient, v, &swap{dead: v.segments[:1]}); err != nil {
		w.t.Fatal(err)
	}
}

// TestInherit: what a view takes over from the one before it, after what others did
// to the log. It must be exact at once, and after the Rebuild that it asks for; and
// that must read no more than it has to.
func TestInherit(t *testing.T) {
	t.Parallel()
	const nothing = -1
	for _, c := range []struct {
		name  string
		story func(w *world, v *View, want map[int]bool)
		gate  bool  // it is ready at once
		read  int64 // keys that the Rebuild reads; nothing when there is none
	}{
		{"nothing happened", func(*world, *View, map[int]bool) {}, true, nothing},
		{"somebody sealed what the view has", func(w *world, _ *View, _ map[int]bool) {
			o := w.load(WholeTopic)
			w.seal(o)
			w.clean(o)
		}, true, 1},
		{"somebody wrote, and sealed what the view has", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.seal(o)
			w.write(o, 'b', 20)
			want[20] = true
		}, true, 1},
		{"somebody merged", func(w *world, _ *View, _ map[int]bool) { w.compact(w.load(WholeTopic)) }, true, 12},
		{"somebody sealed beyond the view's head", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.write(o, 'b', 20)
			w.write(o, 'b', 21)
			want[20], want[21] = true, true
			w.seal(o)
			w.clean(o)
		}, false, 3},
		{"somebody sealed up to the view's head, and beyond it", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.seal(o)
			w.write(o, 'b', 20)
			want[20] = true
			w.seal(o)
		}, false, 2},
		{"sealed beyond the view's head, and its run is pruned", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.write(o, 'b', 20)
			want[20] = true
			w.seal(o)
			w.tidy(o)
			w.Exec(w.t, "DELETE FROM "+w.Relation("runs")+" WHERE seq <= 17")
		}, false, 2},
		{"sealed beyond the view's head, and merged with what it has", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.write(o, 'b', 20)
			want[20] = true
			w.seal(o)
			w.compact(o)
		}, false, 14}, // the oldest three are merged
		{
			// Run 19 is lost; somebody appends another under that number and
			// seals it. The view's head is not below what is sealed, and its gate has
			// never seen that key.
			"the runs of the view's last numbers are others now", func(w *world, v *View, want map[int]bool) {
				w.write(v, 'a', 24)
				back := w.backup()
				w.write(v, 'a', 25)
				back()
				o := w.load(WholeTopic)
				w.write(o, 'b', 20)
				want[24], want[20] = true, true
				w.seal(o)
			}, false, 3,
		},
		{"something expired", func(w *world, _ *View, want map[int]bool) {
			w.expire(w.load(WholeTopic))
			for n := 1; n <= 4; n++ {
				delete(want, n)
			}
		}, true, nothing},
		{"something expired, and the rest was merged", func(w *world, _ *View, want map[int]bool) {
			o := w.load(WholeTopic)
			w.seal(o)
			w.expire(o)
			w.compact(o)
			for n := 1; n <= 4; n++ {
				delete(want, n)
			}
		}, false, 13},
		{
			// The view's gate was made when keys 1 to 4 had expired. The database loses
			// that, and only that: the view's last run is there, and the keys are back.
			"what had expired is back", func(w *world, v *View, _ map[int]bool) {
				back := w.backup()
				w.expire(v)
				v.ungate()
				w.rebuild(v)
				back()
			}, false, 4,
		},
		{
			"what had expired is back, merged with the rest", func(w *world, v *View, _ map[int]bool) {
				back := w.backup()
				w.expire(v)
				v.ungate()
				w.rebuild(v)
				back()
				w.compact(w.load(WholeTopic))
			}, false, 12,
		},
		{"the view had no gate", func(w *world, v *View, _ map[int]bool) {
			w.compact(w.load(WholeTopic))
			v.ungate()
		}, false, 16},
		{"the gate is full", func(w *world, v *View, _ map[int]bool) {
			w.compact(w.load(WholeTopic))
			v.gate.capacity = 1
		}, true, 16},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, old, want := heirs(t)
			c.story(w, old, want)
			gate := old.gate
			v := w.reload(old)
			if (v.gate != nil) != c.gate || c.gate && (v.gate != gate || old.gate != nil) {
				t.Errorf("gate %v, old's %v", v.gate != nil, old.gate != nil)
			}
			if diff := same(w.load(WholeTopic), v); diff != "" {
				t.Error(diff)
			}
			w.knows(v, 30, want)
			read := int64(nothing)
			if v.Stats().Rebuild {
				err := w.store.Rebuild(t.Context(), w.Conn(t), patient, v, func(_, total int64) {
					read = total
					w.knows(v, 30, want)
				})
				if err != nil {
					t.Error(err)
				}
			}
			if s := v.Stats(); read != c.read || s.Rebuild || v.gate == nil {
				t.Errorf("%d keys read, want %d: %+v", read, c.read, s)
			}
			w.knows(v, 30, want)
			w.seal(v)
			w.compact(v)
			w.knows(v, 30, want)
			w.knows(w.reload(v), 30, want)
		})
	}
}

// TestInheritWhileWorkedOn: a seal, a rebuild or an offer is at work on the view whose
// gate is taken. It must leave the gate alone from then on: the race detector says
// whether it does.
func TestInheritWhileWorkedOn(t *testing.T) {
	t.Parallel()
	keys := make([]slot, 60_000)
	var block []byte
	for i := range keys {
		keys[i] = slot{uint64(i) * 0x9e3779b97f4a7c15, uint64(i)}
		block = keys[i].append(block)
	}
	for _, ready := range []bool{true, false} {
		for name, work := range map[string]func(old *View, r *rebuilding, gate *Filter) error{
			"seal": func(old *View, _ *rebuilding, _ *Filter) error {
				old.cover(keys)
				return nil
			},
			"rebuild": func(old *View, r *rebuilding, _ *Filter) error {
				for b := block; len(b) > 0; b = b[1600:] {
					old.fillBlock(r, 0, b[:1600])
				}
				return old.finish(r)
			},
			"offer": func(old *View, _ *rebuilding, gate *Filter) error {
				_, _, err := old.image(gate)
				return err
			},
		} {
			old, v := newView(1, nil), newView(1, nil)
			old.Head, old.sealed, old.manifest, v.manifest = 9, 9, stream.UUID{7}, stream.UUID{8}
			n := int64(len(keys))
			old.segments = []*Segment{{ID: stream.UUID{1}, Keys: n, Last: 5}, {ID: stream.UUID{2}, Keys: n, Last: 9, outside: !ready}}
			v.segments = []*Segment{{ID: stream.UUID{1}, Keys: n, Last: 5}, {ID: stream.UUID{2}, Keys: n, Last: 9}}
			gate := newFilter(4*n, gateShape)
			if ready {
				old.gate = gate
			} else {
				old.base = gate
			}
			r := old.rebuild()
			old.begin(r)
			begun, ended := make(chan bool), make(chan error, 1)
			go func() {
				close(begun)
				var err error
				for range 5 {
					err = work(old, r, gate)
				}
				ended <- err
			}()
			<-begun
			v.inherit(old, true)
			if got := map[bool]*Filter{true: v.gate, false: v.base}[ready]; got != gate || old.gate == gate || old.base == gate || old.building == gate {
				t.Errorf("%s, ready %v: the gate was not taken", name, ready)
			}
			for range 50 {
				v.cover(keys[:1000])
			}
			if err := <-ended; err != nil && name != "rebuild" {
				t.Error(err)
			}
			r.read = []int64{n, n}[:len(r.scan)]
			if err := old.finish(r); !ready && !errors.Is(err, ErrDropView) {
				t.Errorf("%s: a rebuild ends with a gate that is not the view's any more: %v", name, err)
			}
			if old.gate == gate {
				t.Errorf("%s, ready %v: two views have one gate", name, ready)
			}
		}
	}
}

// TestRebuildOutlivesItsView: while a view without a gate reads a long history, others
// seal, so it is loaded again and again. What was read is not in vain: the rebuild goes
// on, and the last view has its gate, but for what was sealed meanwhile.
func TestRebuildOutlivesItsView(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		then func(w *world, heir *View, want map[int]bool) (later func()) // before the rebuild ends; and behind it
		base bool
		read int64 // keys that the heir's rebuild reads
	}{
		{"nothing else", func(*world, *View, map[int]bool) func() { return func() {} }, true, 3},
		{"the heir seals", func(w *world, heir *View, want map[int]bool) func() {
			w.write(heir, 'c', 40)
			want[40] = true
			w.seal(heir)
			return func() {}
		}, true, 4},
		{"the heir is sealing", func(w *world, heir *View, want map[int]bool) func() {
			w.write(heir, 'c', 40)
			want[40] = true
			heir.task <- struct{}{}
			g := heir.freeze()
			seg, err := w.store.write(w.t.Context(), w.conn, patient, heir, g.keys.sorted(), g.head)
			if err != nil {
				w.t.Fatal(err)
			}
			heir.cover(g.keys.sorted())
			return func() {
				if err := w.store.swap(w.t.Context(), w.conn, patient, heir, &swap{segment: seg, gen: g}); err != nil {
					w.t.Error(err)
				}
				<-heir.task
			}
		}, false, 20},
		{"the heir has sealed, and not heard of it", func(w *world, heir *View, want map[int]bool) func() {
			w.write(heir, 'c', 40)
			want[40] = true
			g := heir.freeze()
			seg, err := w.store.write(w.t.Context(), w.conn, patient, heir, g.keys.sorted(), g.head)
			if err != nil {
				w.t.Fatal(err)
			}
			heir.cover(g.keys.sorted())
			conn, _ := w.cut(1, true)
			pid := conn.PgConn().PID()
			if err := w.store.swap(w.t.Context(), conn, patient, heir, &swap{segment: seg, gen: g}); !errors.Is(err, pgtx.ErrCommitUnknown) {
				w.t.Fatal(err)
			}
			w.gone(pid)
			return func() {}
		}, false, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, v, want := heirs(t)
			v.ungate()
			for _, seg := range v.segments {
				seg.filter = nil
			}
			reached, goOn, ended := make(chan bool), make(chan bool), make(chan error, 1)
			release := sync.OnceFunc(func() { close(goOn) })
			defer release()
			conn, first := w.Conn(t), true
			go func() {
				ended <- w.store.Rebuild(t.Context(), conn, patient, v, func(_, _ int64) {
					if first {
						first = false
						reached <- true
						<-goOn
					}
				})
			}()
			<-reached
			heir := v
			for _, key := range []int{50, 51} {
				o := w.load(WholeTopic)
				w.write(o, 'b', key)
				want[key] = true
				w.seal(o)
				heir = w.reload(heir)
			}
			later := c.then(w, heir, want)
			release()
			err := <-ended
			if err != nil || heir.gate != nil || (heir.base != nil) != c.base || v.gate != nil {
				t.Fatalf("%v; heir %+v", err, heir)
			}
			later()
			w.knows(heir, 60, want)
			read := int64(0)
			if err := w.store.Rebuild(t.Context(), w.conn, patient, heir, func(_, total int64) { read = total }); err != nil {
				t.Error(err)
			}
			if read != c.read || heir.gate == nil {
				t.Errorf("%d keys read, want %d", read, c.read)
			}
			w.knows(heir, 60, want)
		})
	}
}
