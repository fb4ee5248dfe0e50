package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

const joined = WholeTopic

var other = []byte("other generation") //nolint:gochecknoglobals // a constant

// change gives the topic's logs another generation on a connection of its own.
func (w *world) change(scope stream.Scope, count int32, keep bool) (int64, error) {
	return w.changeOn(w.Conn(w.t), scope, count, keep)
}

func (w *world) changeOn(conn *pgx.Conn, scope stream.Scope, count int32, keep bool) (keys int64, err error) {
	tx, err := pgtx.Begin(w.t.Context(), conn, patient)
	if err != nil {
		return 0, err
	}
	keys, err = w.store.ChangeLogs(w.t.Context(), tx, w.id, Change{Topic: w.topic, Generation: other, Scope: scope, Count: count, Keep: keep})
	if err != nil {
		tx.Rollback(w.t.Context())
		return 0, err
	}
	return keys, tx.Commit(w.t.Context())
}

func (w *world) widen() {
	w.t.Helper()
	if _, err := w.change(stream.ScopeTopic, 0, true); err != nil {
		w.t.Fatal(err)
	}
}

// threeLogs has three: segments of two tiers and runs, keys in runs alone, nothing.
func threeLogs(t *testing.T) (w *world, views []*View, keys map[int]bool) {
	t.Helper()
	w = newWorld(t, 3)
	w.store.sizes = tiny
	views, keys = []*View{w.load(0), w.load(1), w.load(2)}, map[int]bool{}
	n := 0
	write := func(v *View, count int) {
		var numbers []int
		for range count {
			n++
			numbers, keys[n] = append(numbers, n), true
		}
		w.write(v, 'a', numbers...)
	}
	for range tiny.merge + 2 {
		write(views[0], 3)
		w.seal(views[0])
	}
	w.compact(views[0])
	write(views[0], 2)
	w.write(views[0], 'a') // a batch of duplicates only
	write(views[1], 5)
	write(views[1], 1)
	return w, views, keys
}

// audit is how many ranges the audit view shows.
func (w *world) audit() (n int) {
	w.t.Helper()
	if err := w.Owner.QueryRow(w.t.Context(), "SELECT count(*) FROM "+w.Relation("runs")).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// TestWidenKeepsEveryKey: the one log has all keys, in runs and segments, and goes on
// like any other; the audit rows are all there; the old logs are of no use to anybody.
func TestWidenKeepsEveryKey(t *testing.T) {
	t.Parallel()
	w, views, keys := threeLogs(t)
	built := &swap{gen: views[1].freeze()}
	var err error
	if built.segment, err = w.store.write(t.Context(), w.Conn(t), patient, views[1], built.gen.keys.sorted(), built.gen.head); err != nil {
		t.Fatal(err)
	}
	rows := w.audit()
	if n, err := w.change(stream.ScopeTopic, 0, true); err != nil || n != int64(len(keys)) {
		t.Fatalf("%d keys moved, want %d: %v", n, len(keys), err)
	}
	if n := w.audit(); n != rows {
		t.Errorf("%d runs, %d before", n, rows)
	}
	v := w.load(joined)
	if s := v.Stats(); s.Runs != 4 || s.Keys != 8 || !slices.Equal(s.Tiers, []int{2, 1}) {
		t.Errorf("%+v", s)
	}
	w.knows(v, 100, keys)
	for i, old := range views {
		if err := w.append(t.Context(), w.conn, newRun(old, 'z', 90)); pgtx.Code(err) != pgtx.CodeLogClosed {
			t.Errorf("log %d: an append: %v", i, err)
		}
		if err := w.catchUp(old, int32(i)); !errors.Is(err, ErrLogClosed) {
			t.Errorf("log %d: catching up: %v", i, err)
		}
	}
	var f Fold
	f.Reset(0)
	f.Add(fpOf(1))
	if f.Check(views[0]) != 1 {
		t.Fatal("memory decided about a sealed key")
	}
	if err := w.store.LookUp(t.Context(), w.conn, patient, &f); err != nil || !f.Open() {
		t.Errorf("a look-up in a log whose segments are gone counted: %v", err)
	}
	if _, err := w.store.Seal(t.Context(), w.conn, patient, views[0]); !errors.Is(err, ErrDropView) {
		t.Errorf("a seal of an old log: %v", err)
	}
	if err := w.store.swap(t.Context(), w.conn, patient, views[1], built); pgtx.Code(err) != pgtx.CodeLogClosed {
		t.Errorf("the swap of what was being built: %v", err)
	}
	w.write(v, 'b', 91)
	keys[91] = true
	w.goesOn(v, keys)
}

// goesOn seals, merges, cleans up, loads and verifies.
func (w *world) goesOn(v *View, keys map[int]bool) {
	w.t.Helper()
	w.seal(v)
	w.clean(v)
	for w.compact(v) > 0 {
		w.clean(v)
	}
	w.knows(v, 100, keys)
	loaded := w.load(joined)
	w.rebuild(loaded)
	w.knows(loaded, 100, keys)
	found, err := w.store.Verify(w.t.Context(), w.conn, w.Conn(w.t), patient, w.id, Standing{Log: v.Log, Partition: w.part(joined)})
	if err != nil || found.Keys != int64(len(keys)) {
		w.t.Errorf("%+v, %v", found, err)
	}
}

// TestWidenWaitsForACommit (V7): a dead-letter retry, which holds no position, has
// appended key 50 to log 0 and not committed yet. If the widening did not wait for
// the log's row it would move the runs there are, and key 50 would be in no open log.
func TestWidenWaitsForACommit(t *testing.T) {
	t.Parallel()
	w, views, keys := threeLogs(t)
	retry, conn := w.Conn(t), w.Conn(t)
	var xact string
	tx, err := pgtx.Begin(t.Context(), retry, patient, pgtx.Statement{
		Step: pgtx.StepFence, SQL: "SELECT pg_catalog.pg_current_xact_id()::text",
		Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Run(t.Context(), w.store.Append(xact, []Run{newRun(views[0], 'r', 50)})); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		n, err := w.changeOn(conn, stream.ScopeTopic, 0, true)
		if err == nil && n != int64(len(keys))+1 {
			err = fmt.Errorf("%d keys were looked at, want %d", n, len(keys)+1)
		}
		ended <- err
	}()
	w.waits(conn, ended)
	if err := w.lock(views[1].Log).Rollback(t.Context()); err != nil { // it waits for the first with nothing in its hands
		t.Error(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	keys[50] = true
	w.knows(w.load(joined), 100, keys)
}

// waits returns once the session waits for a lock.
func (w *world) waits(conn *pgx.Conn, ended <-chan error) {
	w.t.Helper()
	for waits := false; !waits; {
		select {
		case err := <-ended:
			w.t.Fatalf("it did not wait: %v", err)
		default:
		}
		if err := w.Owner.QueryRow(w.t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(conn.PgConn().PID())).Scan(&waits); err != nil {
			w.t.Fatal(err)
		}
	}
}

// TestARetryBehindAWidening (V7): a dead-letter retry loads log 0. The widening moves
// its runs; key 50 is applied in the joined log. If the retry found log 0 as in its
// view, it would apply key 50 again.
func TestARetryBehindAWidening(t *testing.T) {
	t.Parallel()
	w, _, keys := threeLogs(t)
	retry := w.load(0)
	if w.known(retry, 50)[50] {
		t.Fatal("key 50 is there already")
	}
	w.widen()
	v := w.load(joined)
	w.write(v, 'b', 50)
	before := w.logs()
	if err := w.append(t.Context(), w.conn, newRun(retry, 'r', 50)); pgtx.Code(err) != pgtx.CodeLogClosed {
		t.Errorf("%v", err)
	}
	if diff := cmp.Diff(before, w.logs()); diff != "" {
		t.Errorf("the logs moved: %s", diff)
	}
	keys[50] = true
	w.goesOn(v, keys)
}

// TestWidenNamesEverythingAnew: a widening is lost, with what was applied behind it
// or with a run before it, and made again; the database gives the joined log the same
// number. A view of the first one would go on, and take lost keys for applied.
func TestWidenNamesEverythingAnew(t *testing.T) {
	t.Parallel()
	for name, then := range map[string]func(w *world, views []*View) (back func()){
		"of empty logs": func(w *world, _ []*View) func() { return w.backup() },
		"whose last run is the same": func(w *world, views []*View) func() {
			w.write(views[1], 'a', 2)
			back := w.backup()
			w.write(views[0], 'a', 1)
			return back
		},
		"with a segment": func(w *world, views []*View) func() {
			w.write(views[1], 'a', 2)
			w.seal(views[1])
			back := w.backup()
			w.write(views[0], 'a', 1)
			w.seal(views[0])
			return back
		},
	} {
		w := newWorld(t, 2)
		w.store.sizes = tiny
		back := then(w, []*View{w.load(0), w.load(1)})
		w.widen()
		lost := w.load(joined)
		back()
		w.widen()
		if v := w.load(joined); v.Log != lost.Log {
			t.Fatalf("%s: log %d, and it was %d: the test does not test it", name, v.Log, lost.Log)
		}
		if lost.Is(w.load(joined).HeadID, w.load(joined).manifest) {
			t.Errorf("%s: the lost view is the log's", name)
		}
		if err := w.append(t.Context(), w.conn, newRun(lost, 'z', 9)); pgtx.Code(err) != pgtx.CodeLogMoved {
			t.Errorf("%s: an append on the lost log: %v", name, err)
		}
		if err := w.catchUp(lost, joined); !errors.Is(err, ErrDropView) {
			t.Errorf("%s: catching up: %v", name, err)
		}
		w.exact(w.load(joined))
	}
}

// TestChangeRefusesDamage: a gap among the runs would be numbered over, and nobody
// would ever know which keys are missing.
func TestChangeRefusesDamage(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"a run is missing":       "DELETE FROM %s WHERE log = 2 AND seq = 1",
		"the last is missing":    "DELETE FROM %s WHERE log = 2 AND seq = 2",
		"one too many":           "INSERT INTO %s SELECT log, 3, gen_random_uuid(), ranges, committed_at, newest, fingerprints FROM %[1]s WHERE log = 2 AND seq = 2",
		"another number":         "UPDATE %s SET seq = 7 WHERE log = 2 AND seq = 1",
		"no fingerprints":        "UPDATE %s SET fingerprints = NULL WHERE log = 2 AND seq = 1",
		"another head":           "UPDATE %s SET run_id = gen_random_uuid() WHERE log = 2 AND seq = 2",
		"the sealed head is one": "DELETE FROM %s WHERE log = 3 AND seq = 1",
	} {
		w, views, _ := threeLogs(t)
		w.write(views[2], 'a', 70)
		w.seal(views[2])
		w.Exec(t, fmt.Sprintf(damage, w.Relation("runs")))
		before := w.logs()
		for _, scope := range []stream.Scope{stream.ScopeTopic, stream.ScopePartition} {
			if _, err := w.change(scope, 3, true); pgtx.Code(err) != pgtx.CodeDamaged {
				t.Errorf("%s, scope %s: %v", name, scope, err)
			}
		}
		if diff := cmp.Diff(before, w.logs()); diff != "" {
			t.Errorf("%s: the logs moved: %s", name, diff)
		}
		if _, err := w.change(stream.ScopePartition, 3, false); err != nil {
			t.Errorf("%s: keys that are forgotten: %v", name, err)
		}
	}
}

// TestChangeKeepsPartitions: under a new generation of the same scope each partition
// keeps its own keys, and only there.
func TestChangeKeepsPartitions(t *testing.T) {
	t.Parallel()
	w, views, _ := threeLogs(t)
	want := make([]map[int]bool, 3)
	for i, v := range views {
		want[i] = w.known(v, below(100)...)
	}
	for _, count := range []int32{2, 4} {
		if _, err := w.change(stream.ScopePartition, count, true); pgtx.Code(err) != "22023" {
			t.Errorf("keys of 3 partitions kept in %d: %v", count, err)
		}
	}
	if _, err := w.change(stream.ScopePartition, 3, true); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		v := w.load(int32(i))
		w.knows(v, 100, want[i])
		if v.Log == views[i].Log || !bytes.Equal(v.Generation, other) {
			t.Errorf("log %d of generation %q", v.Log, v.Generation)
		}
	}
	w.widen()
	if _, err := w.change(stream.ScopePartition, 3, true); pgtx.Code(err) != "22023" {
		t.Errorf("the keys of a topic kept by partition: %v", err)
	}
}

func below(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestForgottenKeys: they are in no open log, and their room is given back; the audit
// rows stay.
func TestForgottenKeys(t *testing.T) {
	t.Parallel()
	w, views, keys := threeLogs(t)
	rows := w.audit()
	if n, err := w.change(stream.ScopePartition, 4, false); err != nil || n != int64(len(keys)) {
		t.Fatalf("%d keys forgotten, want %d: %v", n, len(keys), err)
	}
	for i := range int32(4) {
		w.knows(w.load(i), 100, nil)
	}
	closed, err := w.store.Closed(t.Context(), w.conn, patient, w.id)
	if err != nil || !slices.Equal(closed, []int64{views[0].Log, views[1].Log, views[2].Log}) {
		t.Errorf("closed logs: %v, %v", closed, err)
	}
	for _, v := range views {
		w.clean(v)
	}
	var left int
	if err := w.Owner.QueryRow(t.Context(), "SELECT (SELECT count(*) FROM "+w.Relation("blocks")+") + (SELECT count(*) FROM "+w.Relation("segments")+
		") + (SELECT count(fingerprints) FROM "+w.Relation("runs")+")").Scan(&left); err != nil || left != 0 {
		t.Errorf("%d rows hold forgotten keys: %v", left, err)
	}
	if n := w.audit(); n != rows {
		t.Errorf("%d audit rows, %d before", n, rows)
	}
}

// TestHoldsMove: a replay that is running may meet keys of the joined log.
func TestHoldsMove(t *testing.T) {
	t.Parallel()
	w, views, _ := threeLogs(t)
	id := stream.UUID{1}
	w.Exec(t, "INSERT INTO "+w.Relation("holds")+" (id, log, oldest, reason, expires_at) VALUES ($1, $2, now(), 'replay', now())", [16]byte(id), views[1].Log)
	w.widen()
	var log int64
	if err := w.Owner.QueryRow(t.Context(), "SELECT log FROM "+w.Relation("holds")+" WHERE id = $1 AND reason = 'replay'", [16]byte(id)).Scan(&log); err != nil {
		t.Fatal(err)
	}
	if log != w.load(joined).Log {
		t.Errorf("the hold is on log %d", log)
	}
}

// TestAKeyOfTwoPartitions: a key that came on two partitions, where its Kafka key was
// another, was right to be applied twice. The joined log has it twice, and that is no
// damage: it goes on, and the copies become one where they are merged.
func TestAKeyOfTwoPartitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.store.sizes = tiny
	keys := map[int]bool{}
	for n := range int32(2) {
		v := w.load(n)
		w.write(v, 'a', 1, 2+int(n))
		w.seal(v)
		w.write(v, 'a', 4, 5+int(n))
	}
	for _, n := range []int{1, 2, 3, 4, 5, 6} {
		keys[n] = true
	}
	w.widen()
	v := w.load(joined)
	w.knows(v, 100, keys)
	found, err := w.store.Verify(t.Context(), w.conn, w.Conn(t), patient, w.id, Standing{Log: v.Log, Partition: w.part(joined)})
	if err != nil || found.Keys != 6 || found.Repeats != 2 {
		t.Errorf("%+v, %v", found, err)
	}
	w.write(v, 'a', 7)
	keys[7] = true
	w.goesOn(v, keys)
}
