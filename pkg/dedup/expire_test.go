package dedup

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// timed is a world whose partitions have positions and whose records have times, in
// hours from its base.
type timed struct {
	*world
	base time.Time
}

func newTimed(t *testing.T, partitions int32) *timed {
	t.Helper()
	w := &timed{world: newWorld(t, partitions)}
	w.Exec(t, `INSERT INTO `+w.Relation("positions")+` (pipeline, topic_id, partition, next_offset, generation)
		SELECT $1, $2, n, 100, $3 FROM generate_series(0, $4 - 1) n`, w.id, [16]byte(w.topic), gen, partitions)
	if err := w.Owner.QueryRow(t.Context(), "SELECT now()").Scan(&w.base); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *timed) at(hours float64) time.Time {
	return w.base.Add(time.Duration(hours * float64(time.Hour)))
}

// reaches sets how far a partition has come, as two batches with this newest time do.
func (w *timed) reaches(partition int32, hours float64) {
	w.t.Helper()
	w.Exec(w.t, "UPDATE "+w.Relation("positions")+` SET progress = greatest(progress, $1),
		last_record_time = greatest(last_record_time, $1) WHERE partition = $2`, w.at(hours), partition)
}

// unknown is the time of a run of which no stamp counts.
const unknown = -1e6

// run appends keys with a newest record time.
func (w *timed) run(v *View, hours float64, numbers ...int) {
	w.t.Helper()
	r := newRun(v, 'a', numbers...)
	if hours != unknown {
		r.Newest = w.at(hours)
	}
	if err := w.append(w.t.Context(), w.conn, r); err != nil {
		w.t.Fatal(err)
	}
	v.Learn(r.ID, r.Fingerprints)
}

const retention = 10 * time.Hour

func (w *timed) expire(v *View, ends map[int32]int64) int64 {
	w.t.Helper()
	n, err := w.store.Expire(w.t.Context(), w.conn, patient, v, retention, ends)
	if err != nil {
		w.t.Fatal(err)
	}
	return n
}

// only is a map of what is known.
func only(numbers ...int) map[int]bool {
	out := map[int]bool{}
	for _, n := range numbers {
		out[n] = true
	}
	return out
}

// TestExpire: keys go a segment at a time, when progress is a retention past the
// newest record, and not a moment earlier; then they are unknown to everybody.
func TestExpire(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 2)
	v := w.load(0)
	w.run(v, -30, 1, 2)
	w.seal(v)
	w.run(v, -29, 3)
	w.run(v, -25, 4)
	w.seal(v)
	w.run(v, -12, 5)
	before := w.load(0)
	everybody := func(want map[int]bool) {
		t.Helper()
		w.knows(v, 20, want)
		w.knows(w.load(0), 20, want)
	}
	if n := w.expire(v, nil); n != 0 {
		t.Errorf("%d keys expired before anything was reached", n)
	}
	w.reaches(0, -20.1)
	if n := w.expire(v, nil); n != 0 {
		t.Errorf("%d keys expired too soon", n)
	}
	w.reaches(0, -19.9)
	if n := w.expire(v, nil); n != 2 {
		t.Errorf("%d keys expired, want 2", n)
	}
	everybody(only(3, 4, 5))
	w.reaches(0, -15.1)
	if n := w.expire(v, nil); n != 0 { // of the second segment, key 3 alone is old
		t.Errorf("%d keys expired too soon", n)
	}
	w.reaches(0, -1)
	if n := w.expire(v, nil); n != 2 {
		t.Errorf("%d keys expired, want 2", n)
	}
	everybody(only(5)) // not sealed: it cannot expire
	if s := v.Stats(); s.Segments != 0 || s.GateBytes != 0 || s.Rebuild {
		t.Errorf("nothing is left, and %+v", s)
	}
	if err := w.catchUp(before, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("another member's view has what is gone: %v", err)
	}
	w.run(v, -1, 1, 6)
	w.seal(v)
	everybody(only(1, 5, 6))
	w.tidy(v)
	everybody(only(1, 5, 6))
	w.whole()
}

// TestExpiryOfAnother: two members' views; one lets segments die, then the other
// wants to, or asks.
func TestExpiryOfAnother(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	for _, h := range []float64{-40, -30, -2} {
		w.run(v, h, int(-h), int(-h)+1)
		w.seal(v)
	}
	other, bare := w.load(0), w.load(0)
	w.rebuild(other)
	w.reaches(0, -25)
	w.expire(v, nil)
	w.reaches(0, -1)
	if _, err := w.store.Expire(t.Context(), w.conn, patient, other, retention, nil); !errors.Is(err, ErrDropView) {
		t.Errorf("expired from segments that are not the log's: %v", err)
	}
	for name, o := range map[string]*View{"with a gate": other, "without": bare} {
		var f Fold
		f.Reset(0)
		f.Add(fpOf(40))
		if f.Check(o) != 1 {
			t.Fatalf("%s: memory decided", name)
		}
		if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil {
			t.Fatal(err)
		}
		if !f.Open() {
			t.Errorf("%s: an answer about other segments was taken", name)
		}
	}
	w.knows(w.load(0), 50, only(2, 3, 30, 31))
}

// TestRefusedExpiry: whatever changed since the segments were read, nothing dies and
// nothing leaves memory.
func TestRefusedExpiry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(w *timed, v *View)
		drop   bool
	}{
		"somebody else sealed": {func(w *timed, _ *View) { w.seal(w.load(0)) }, true},
		"somebody else merged": {func(w *timed, _ *View) { w.compact(w.load(0)) }, true},
		"the log is closed": {func(w *timed, _ *View) {
			w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET state = 'closed'")
		}, true},
		"a hold was placed": {func(w *timed, v *View) {
			w.Exec(w.t, "INSERT INTO "+w.Relation("holds")+` (id, log, oldest, reason, expires_at)
				VALUES (gen_random_uuid(), $1, $2, 'replay', now() + interval '1 hour')`, v.Log, w.at(-31))
		}, false},
		"the database went back": {func(w *timed, _ *View) {
			w.Exec(w.t, "UPDATE "+w.Relation("positions")+" SET progress = $1", w.at(-29))
		}, false},
	} {
		w := newTimed(t, 1)
		w.store.sizes = tiny
		v := w.load(0)
		for n := range 3 {
			w.run(v, -30, n+1)
			w.seal(v)
		}
		w.run(v, -30, 9)
		w.reaches(0, -1)
		e := &expiry{retention, nil}
		dead, err := w.store.expired(t.Context(), w.conn, patient, v, e)
		if err != nil || len(dead) != 3 {
			t.Fatalf("%s: %d may die, %v", name, len(dead), err)
		}
		c.change(w, v)
		before := w.logs()
		err = w.store.swap(t.Context(), w.conn, patient, v, &swap{dead: dead, expiry: e})
		if err == nil || errors.Is(err, ErrDropView) != c.drop {
			t.Errorf("%s: %v", name, err)
		}
		if after := w.logs(); !slices.Equal(before, after) {
			t.Errorf("%s: the log changed", name)
		}
		if s := v.Stats(); s.Segments != 3 || s.Expired != 0 || v.pending != nil {
			t.Errorf("%s: memory changed: %+v", name, s)
		}
		if !c.drop {
			w.knows(v, 20, only(1, 2, 3, 9))
		}
	}
}

// TestExpiryAcrossALookUp: between Check and LookUp the segments that a fold names
// died. The answer is "ask again", and then "unknown".
func TestExpiryAcrossALookUp(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	w.run(v, -30, 1)
	w.seal(v)
	w.run(v, -5, 2)
	w.seal(v)
	w.reaches(0, -1)
	var f Fold
	f.Reset(0)
	f.Add(fpOf(1))
	f.Add(fpOf(2))
	if f.Check(v) != 2 {
		t.Fatal("memory decided")
	}
	w.expire(v, nil)
	if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil {
		t.Fatal(err)
	}
	if !f.Open() {
		t.Error("an answer about a dead segment was taken")
	}
	w.knows(v, 9, only(2))
}

// TestLostExpiry: the database goes back behind an expiry. The view finds out, and
// the keys are known again, as they are in the log.
func TestLostExpiry(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	w.run(v, -30, 1)
	w.seal(v)
	w.run(v, -5, 2)
	w.seal(v)
	w.reaches(0, -1)
	back := w.backup()
	w.expire(v, nil)
	back()
	if n := w.clean(v); n != 2 { // fingerprints of the two runs, and no block
		t.Errorf("%d rows were removed", n)
	}
	if err := w.catchUp(v, 0); !errors.Is(err, ErrDropView) {
		t.Errorf("catch up: %v", err)
	}
	w.knows(w.load(0), 9, only(1, 2))
}

// TestHold: a replay's hold keeps everything from its time on.
func TestHold(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	for _, h := range []float64{-50, -40, -30} {
		w.run(v, h, int(-h))
		w.seal(v)
	}
	w.Exec(t, "INSERT INTO "+w.Relation("holds")+` (id, log, oldest, reason, expires_at)
		VALUES (gen_random_uuid(), $1, $2, 'replay', now() + interval '1 hour')`, v.Log, w.at(-40))
	w.reaches(0, -1)
	if n := w.expire(v, nil); n != 1 {
		t.Errorf("%d keys expired, want 1", n)
	}
	w.knows(v, 60, only(40, 30))
	w.Exec(t, "UPDATE "+w.Relation("holds")+" SET expires_at = now()")
	if n := w.expire(v, nil); n != 2 {
		t.Errorf("%d keys expired behind the hold, want 2", n)
	}
}

// TestTopicExpires: one log for all partitions goes by the slowest of them, but not
// by one that has nothing left to read.
func TestTopicExpires(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 3)
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET partition = NULL WHERE partition = 0")
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET state = 'closed' WHERE partition IS NOT NULL")
	v := w.whole0()
	w.run(v, -30, 1)
	w.seal(v)
	w.reaches(0, -1)
	w.reaches(1, -1)
	lag := map[int32]int64{0: 100, 1: 100, 2: 101}
	if n := w.expire(v, lag); n != 0 {
		t.Error("expired, and a partition has not even begun")
	}
	w.reaches(2, -25)
	if n := w.expire(v, lag); n != 0 {
		t.Error("expired ahead of the slowest partition")
	}
	if n := w.expire(v, nil); n != 0 {
		t.Error("expired, and nobody knows where the partitions end")
	}
	if n := w.expire(v, map[int32]int64{0: 100, 1: 100, 2: 100}); n != 1 {
		t.Error("an idle partition holds up the others")
	}
	w.knows(v, 9, nil)
}

// whole0 makes a view of the topic's log.
func (w *timed) whole0() *View {
	w.t.Helper()
	v := newView(0, gen)
	if err := w.Owner.QueryRow(w.t.Context(), "SELECT id, head_id, manifest FROM "+w.Relation("logs")+" WHERE state = 'open'").
		Scan(&v.Log, (*[16]byte)(&v.HeadID), (*[16]byte)(&v.manifest)); err != nil {
		w.t.Fatal(err)
	}
	return v
}

// TestHonestTimes: the clocks of producers. A segment must not look older than any
// of its records is.
func TestHonestTimes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runs []float64 // their newest times
		last float64   // the newest time of the partition, unknown if none counted
		want float64   // of the segment; 0 is about now
	}{
		"all is well":                               {[]float64{-30, -29}, -29, -29},
		"a slow clock behind its neighbours":        {[]float64{-9000}, -20, -20},
		"a slow clock among them":                   {[]float64{-30, -9000}, -20, -20},
		"no stamp counts: the time of the commit":   {[]float64{unknown}, -20, 0},
		"one run of several":                        {[]float64{-30, unknown, -29}, -20, 0},
		"no stamp ever counted":                     {[]float64{unknown, unknown}, unknown, 0},
		"the clocks of all producers are slow":      {[]float64{-9000, -8999}, -8999, -8999},
		"the database's clock is behind the others": {[]float64{3}, -20, 3},
	} {
		w := newTimed(t, 1)
		if c.last != unknown {
			w.reaches(0, c.last)
		}
		v := w.load(0)
		for i, h := range c.runs {
			w.run(v, h, i+1)
		}
		w.seal(v)
		var newest time.Time
		if err := w.Owner.QueryRow(t.Context(), "SELECT newest FROM "+w.Relation("segments")).Scan(&newest); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if off := newest.Sub(w.at(c.want)); off < 0 || off > 10*time.Minute {
			t.Errorf("%s: newest is %s, want %s", name, newest.Sub(w.base), w.at(c.want).Sub(w.base))
		}
	}
}

// TestMergedTimes: a merge has the times of all that it holds, and if one's are not
// known, none.
func TestMergedTimes(t *testing.T) {
	t.Parallel()
	for _, blank := range []bool{false, true} {
		w := newTimed(t, 1)
		w.store.sizes = tiny
		v := w.load(0)
		for i, h := range []float64{-30, -28, -29} {
			w.run(v, h, i+1)
			w.seal(v)
		}
		if blank {
			w.Exec(t, "UPDATE "+w.Relation("segments")+" SET oldest = NULL, newest = NULL WHERE first_run = 2")
		}
		if w.compact(v) != 3 {
			t.Fatal("nothing merged")
		}
		w.reaches(0, -1)
		want := int64(3)
		if blank {
			want = 0
		}
		if n := w.expire(v, nil); n != want {
			t.Errorf("blank %v: %d keys expired, want %d", blank, n, want)
		}
	}
}

// TestNeverMergedAcrossWindows: the segments of a window die together, and none
// takes one of another window along or keeps it.
func TestNeverMergedAcrossWindows(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	w.store.sizes = tiny
	v := w.load(0)
	window := Window(retention)
	first := w.base.Add(-40 * time.Hour)
	first = time.UnixMilli(first.UnixMilli() / window.Milliseconds() * window.Milliseconds())
	next := 1
	put := func(at time.Time) {
		w.run(v, at.Sub(w.base).Hours(), next)
		w.seal(v)
		next++
	}
	put(first)
	put(first.Add(window - time.Second))
	put(first.Add(window)) // three of a tier, of two windows
	merge := func() int {
		n, err := w.store.Compact(t.Context(), w.conn, patient, v, Windows(retention))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := merge(); n != 0 {
		t.Errorf("%d segments of different windows were merged", n)
	}
	put(first.Add(window + time.Second))
	put(first.Add(2*window - time.Second))
	if n := merge(); n != 3 {
		t.Errorf("%d segments merged, want the 3 of the second window", n)
	}
	w.reaches(0, first.Add(retention+window).Add(-time.Millisecond).Sub(w.base).Hours())
	if n := w.expire(v, nil); n != 2 {
		t.Errorf("%d keys expired, want the 2 of the first window", n)
	}
	w.knows(v, 10, only(3, 4, 5))

	// Those without times are among themselves.
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET newest = NULL WHERE state = 'live'")
	v = w.load(0)
	for range 2 {
		w.run(v, -1, next)
		w.seal(v)
		next++
	}
	if n := merge(); n != 0 {
		t.Errorf("%d segments with and without times were merged", n)
	}
}

// TestUnsealed: how long the oldest key has waited for its segment.
func TestUnsealed(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	waits := func() time.Duration {
		t.Helper()
		d, err := w.store.Unsealed(t.Context(), w.conn, patient, v)
		if err != nil {
			t.Fatal(err)
		}
		return d.Round(time.Hour)
	}
	w.run(v, -30)
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET committed_at = now() - interval '9 hours'")
	if d := waits(); d != 0 {
		t.Errorf("a run without keys waits for %s", d)
	}
	w.run(v, -30, 1)
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET committed_at = now() - interval '3 hours' WHERE seq = 2")
	w.run(v, -30, 2)
	if d := waits(); d != 3*time.Hour {
		t.Errorf("it waits for %s, want 3 hours", d)
	}
	w.seal(v)
	if d := waits(); d != 0 {
		t.Errorf("all is sealed, and it waits for %s", d)
	}
}

// TestFadedGate: expired keys stay in the gate, which costs a question each, and at
// 30 % a new gate is due.
func TestFadedGate(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	want := map[int]bool{}
	next := 1
	put := func(hours float64, keys int) {
		var numbers []int
		for range keys {
			numbers = append(numbers, next)
			want[next] = hours > -20
			next++
		}
		w.run(v, hours, numbers...)
		w.seal(v)
	}
	put(-50, 250)
	put(-40, 100)
	put(-5, 650)
	w.reaches(0, -35)
	w.expire(v, nil)
	if s := v.Stats(); s.Expired != 250 || s.Rebuild {
		t.Errorf("%+v", s)
	}
	w.reaches(0, -1)
	w.expire(v, nil)
	w.knows(v, next+20, want)
	s := v.Stats()
	if s.Expired != 350 || !s.Rebuild {
		t.Errorf("%+v", s)
	}
	w.rebuild(v)
	w.knows(v, next+20, want)
	if s := v.Stats(); s.Expired != 0 || s.Rebuild || s.Gate > 650 {
		t.Errorf("%+v", s)
	}
	var f Fold
	f.Reset(0)
	for n := range 350 {
		f.Add(fpOf(n + 1))
	}
	if n := f.Check(v); n > 10 {
		t.Errorf("the new gate knows %d of 350 expired keys", n)
	}
	if s := v.Stats(); s.Oldest.Sub(w.at(-5)).Abs() > time.Second {
		t.Errorf("the oldest key is of %s", s.Oldest)
	}
}

// TestReplayBeyondTheWindow: dedup remembers 10 hours, a record is sent again after
// 20, when records of then have been read: it is applied again, which is what a
// window means. Sent again within the window, or by a rewind of 3 hours, it is not.
func TestReplayBeyondTheWindow(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	for h := -30; h < 0; h++ {
		w.run(v, float64(h), -h)
		w.reaches(0, float64(h-1))
		w.seal(v)
		w.expire(v, nil)
	}
	for h := -30; h < -12; h++ {
		if w.known(v, -h)[-h] {
			t.Errorf("a key of %d hours is still known", h)
		}
	}
	for h := -11; h < 0; h++ {
		if !w.known(v, -h)[-h] {
			t.Errorf("a key of %d hours was let go of", h)
		}
	}
	// Nothing is read for a year, by the clock: nothing expires.
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET committed_at = committed_at - interval '1 year'")
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET newest = newest - interval '1 year', oldest = oldest - interval '1 year'")
	w.Exec(t, "UPDATE "+w.Relation("positions")+" SET progress = progress - interval '1 year', last_record_time = last_record_time - interval '1 year'")
	if n := w.expire(v, nil); n != 0 {
		t.Errorf("%d keys expired by the clock alone", n)
	}
}

// TestKilledExpiry kills an expiry at each of its messages to the server, before the
// server has it and after. The keys are all there or all gone, everybody agrees, and
// the next attempt comes to its end.
func TestKilledExpiry(t *testing.T) {
	t.Parallel()
	for _, behind := range []bool{false, true} {
		for _, then := range []sequel{dies, batchFirst, taskFirst} {
			t.Run(fmt.Sprintf("behind=%v/%s", behind, then), func(t *testing.T) {
				t.Parallel()
				w := newTimed(t, 1)
				w.store.sizes = tiny
				gone, n := false, int64(1)
				for w.killedExpiry(n, behind, then, &gone) {
					n++
				}
				if n < 4 || gone != behind {
					t.Errorf("%d messages; gone without a word: %v", n-1, gone)
				}
			})
		}
	}
}

// killedExpiry is one round: false when nothing was left to cut. gone is set when
// the segments died in a transaction whose end nobody heard of.
func (w *timed) killedExpiry(n int64, behind bool, then sequel, gone *bool) bool {
	v := w.load(0)
	hours, first := float64(-1000+20*n), int(n)*10
	w.run(v, hours, first, first+1)
	w.seal(v)
	w.run(v, hours, first+2)
	w.seal(v)
	w.run(v, hours+19, first+3)
	w.seal(v)
	w.reaches(0, hours+19)
	young, all := only(first+3), only(first, first+1, first+2, first+3)
	conn, b := w.cut(n, behind)
	pid := conn.PgConn().PID()
	_, err := w.store.Expire(w.t.Context(), conn, patient, v, retention, nil)
	if !b.fired.Load() {
		if err != nil {
			w.t.Fatalf("nobody cut, and %v", err)
		}
		return false
	}
	w.gone(pid)
	if err == nil {
		w.t.Fatalf("cut at message %d, and no error", n)
	}
	loaded, want := w.load(0), all
	if !w.known(loaded, first)[first] {
		want, *gone = young, true
	}
	w.knowsFrom(loaded, first, want)
	switch then {
	case dies:
		v = loaded
	case batchFirst:
		w.knowsFrom(v, first, want)
		if err := w.catchUp(v, 0); err != nil {
			w.t.Errorf("cut at message %d: catch up: %v", n, err)
		}
	case taskFirst:
	}
	w.expire(v, nil)
	w.knowsFrom(v, first, young)
	w.run(v, hours+19, first)
	w.seal(v)
	w.knowsFrom(v, first, only(first, first+3))
	w.tidy(v)
	return true
}

// knowsFrom is knows for five numbers from first on.
func (w *timed) knowsFrom(v *View, first int, want map[int]bool) {
	w.t.Helper()
	for n, dup := range w.known(v, first, first+1, first+2, first+3, first+4) {
		if dup != want[n] {
			w.t.Errorf("key %d: duplicate %v, want %v", n, dup, want[n])
		}
	}
}

// TestExpiredWholeSegment: a segment that memory holds whole dies. What memory says
// of its keys goes with it, and nothing else.
func TestExpiredWholeSegment(t *testing.T) {
	t.Parallel()
	w := newTimed(t, 1)
	v := w.load(0)
	for _, h := range []float64{-30, -5} {
		w.run(v, h, int(-h), int(-h)+1)
		w.seal(v)
	}
	for _, seg := range v.segments {
		keys, err := w.store.allKeys(t.Context(), w.conn, patient, seg)
		if err != nil {
			t.Fatal(err)
		}
		v.warm[seg] = &warmth{whole: newWhole(keys)}
	}
	w.knows(v, 40, only(30, 31, 5, 6))
	w.reaches(0, -1)
	if n := w.expire(v, nil); n != 2 {
		t.Errorf("%d keys expired, want 2", n)
	}
	w.knows(v, 40, only(5, 6))
	if s := v.Stats(); s.Whole != wholeBytes(2) {
		t.Errorf("%d bytes of whole segments", s.Whole)
	}
}
