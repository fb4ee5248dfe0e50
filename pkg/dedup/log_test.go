package dedup

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// world is a pipeline with the logs of one topic in a private schema.
type world struct {
	*pgtest.DB
	t     testing.TB
	store *Store
	conn  *pgx.Conn // of the runtime role
	id    int64
	topic stream.UUID
}

var gen = []byte("generation") //nolint:gochecknoglobals // a constant

// patient bounds nothing that a test waits for: machines stall.
var patient = pgtx.Settings{Lock: time.Minute, Statement: time.Minute, Idle: time.Minute} //nolint:gochecknoglobals // a constant

func newWorld(t *testing.T, partitions int32) *world {
	t.Helper()
	return newWorldOf(t, partitions)
}

func newWorldOf(t testing.TB, partitions int32) *world { //nolint:thelper // a test's and a benchmark's
	t.Helper()
	w := &world{DB: pgtest.New(t), t: t, topic: stream.UUID{0xaa, 1}}
	w.store, w.conn = New(w.Schema), w.Conn(t)
	if _, err := w.conn.Exec(t.Context(), "SET synchronous_commit = off"); err != nil { // hundreds of commits, no crash
		t.Fatal(err)
	}
	if err := w.Owner.QueryRow(t.Context(), `INSERT INTO `+w.Relation("pipelines")+`
		(name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ('p', $1, $2, 'g', 'c', 1) RETURNING id`, make([]byte, 16), gen).Scan(&w.id); err != nil {
		t.Fatal(err)
	}
	w.Exec(t, `INSERT INTO `+w.Relation("topics")+` (pipeline, topic_id, name, partitions, scope, start, generation)
		VALUES ($1, $2, 't', $3, 'partition', 'earliest', $4)`, w.id, [16]byte(w.topic), max(partitions, 1), gen)
	w.create(0, partitions)
	return w
}

func (w *world) create(first, count int32) {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), w.conn, patient)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := w.store.Create(w.t.Context(), tx, w.id, w.topic, first, count, gen); err != nil {
		w.t.Fatal(err)
	}
	if err := tx.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) part(n int32) stream.Partition { return stream.Partition{Topic: w.topic, Number: n} }

func (w *world) load(n int32) *View {
	w.t.Helper()
	v, err := w.store.Load(w.t.Context(), w.conn, patient, w.id, w.part(n), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	return v
}

func (w *world) catchUp(v *View, n int32) error {
	return w.store.CatchUp(w.t.Context(), w.conn, patient, w.id, w.part(n), v)
}

// fps is a run of the fingerprints with these numbers, sorted: spread as SHA-256
// would spread them, and each has its number in its last bytes.
func fps(numbers ...int) []byte {
	keys := make([]slot, len(numbers))
	for i, n := range numbers {
		keys[i] = slot{uint64(n) * 0x9e3779b97f4a7c15, uint64(n)}
	}
	slices.SortFunc(keys, slot.compare)
	run := []byte{}
	for _, k := range keys {
		run = k.append(run)
	}
	return run
}

// newRun is a run of numbers on top of the view.
func newRun(v *View, id byte, numbers ...int) Run {
	return Run{View: v, ID: stream.UUID{id, byte(v.Head), byte(v.Log), 9}, Fingerprints: fps(numbers...)}
}

// append commits the runs as a committer does, without a fence.
func (w *world) append(ctx context.Context, conn *pgx.Conn, runs ...Run) error {
	var xact string
	tx, err := pgtx.Begin(ctx, conn, patient, pgtx.Statement{
		Step: pgtx.StepFence, SQL: "SELECT pg_catalog.pg_current_xact_id()::text",
		Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	})
	if err != nil {
		return err
	}
	return tx.Commit(ctx, w.store.Append(xact, runs))
}

// write appends a run and has the view learn it.
func (w *world) write(v *View, id byte, numbers ...int) {
	w.t.Helper()
	r := newRun(v, id, numbers...)
	if err := w.append(w.t.Context(), w.conn, r); err != nil {
		w.t.Fatal(err)
	}
	v.Learn(r.ID, r.Fingerprints)
}

// contents is all keys of the exact set.
func contents(v *View) map[slot]bool {
	out := map[slot]bool{}
	for _, g := range []*generation{v.fresh, v.sealing} {
		if g != nil {
			for _, k := range g.keys.sorted() {
				out[k] = true
			}
		}
	}
	return out
}

// same reports how two views differ: everything that a commit or a look-up rests on.
func same(want, got *View) string {
	return cmp.Diff(
		[]any{want.Log, want.Generation, want.Head, want.HeadID, want.manifest},
		[]any{got.Log, got.Generation, got.Head, got.HeadID, got.manifest}) +
		cmp.Diff(len(contents(want)), len(contents(got))) +
		map[bool]string{false: "keys differ"}[maps.Equal(contents(want), contents(got))]
}

// TestLoadAndCatchUp: a loaded view and one that caught up are the view of the
// writer, whatever the number of runs is beside the page.
func TestLoadAndCatchUp(t *testing.T) {
	t.Parallel()
	for _, runs := range []int{0, 1, page - 1, page, page + 1, 3*page + 7} {
		w := newWorld(t, 2)
		writer, early := w.load(0), w.load(0)
		other := w.load(1)
		w.write(other, 'x', 999_999) // another log's runs are not ours
		var middle *View
		for i := range runs {
			switch {
			case i%5 == 4:
				w.write(writer, 'a') // a batch of duplicates only
			default:
				w.write(writer, 'a', 3*i+1, 3*i+2)
			}
			if i == runs/2 {
				middle = w.load(0)
			}
		}
		for name, v := range map[string]*View{"from nothing": early, "from the middle": middle} {
			if v == nil {
				continue
			}
			if err := w.catchUp(v, 0); err != nil {
				t.Errorf("%d runs: catch up %s: %v", runs, name, err)
			} else if diff := same(writer, v); diff != "" {
				t.Errorf("%d runs: catch up %s: %s", runs, name, diff)
			}
			if err := w.catchUp(v, 0); err != nil {
				t.Errorf("%d runs: catch up once more: %v", runs, err)
			}
		}
		if diff := same(writer, w.load(0)); diff != "" {
			t.Errorf("%d runs: load: %s", runs, diff)
		}
	}
}

// TestLoadedZeroKey: the all-zero fingerprint survives the way through the table.
func TestLoadedZeroKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	r := newRun(v, 'a')
	r.Fingerprints = make([]byte, 16)
	if err := w.append(t.Context(), w.conn, r); err != nil {
		t.Fatal(err)
	}
	if v := w.load(0); !v.fresh.keys.has(slot{}) || v.Keys() != 1 {
		t.Errorf("%d keys", v.Keys())
	}
}

// TestAppendGuards: what is not exactly the log of the view raises, and nothing of
// the transaction exists.
func TestAppendGuards(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		damage func(w *world, v *View, r *Run)
		want   string
	}{
		{"head_id of nobody", func(_ *world, v *View, _ *Run) { v.HeadID = stream.UUID{1} }, pgtx.CodeLogMoved},
		{"another member appended", func(w *world, _ *View, _ *Run) { w.write(w.load(0), 'b', 50) }, pgtx.CodeLogMoved},
		{"another member appended nothing new", func(w *world, _ *View, _ *Run) { w.write(w.load(0), 'b') }, pgtx.CodeLogMoved},
		{"closed", func(w *world, _ *View, _ *Run) {
			w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET state = 'closed' WHERE partition = 0")
		}, pgtx.CodeLogClosed},
		{"another generation", func(w *world, _ *View, _ *Run) {
			w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET generation = 'other' WHERE partition = 0")
		}, pgtx.CodeLogClosed},
		{"the view is of another generation", func(_ *world, v *View, _ *Run) { v.Generation = []byte("x") }, pgtx.CodeLogClosed},
		{"no such log", func(_ *world, v *View, _ *Run) { v.Log = 1 << 40 }, pgtx.CodeLogClosed},
		{"another log", func(w *world, v *View, _ *Run) { v.Log = w.load(1).Log }, pgtx.CodeLogMoved},
		{"part of a key", func(_ *world, _ *View, r *Run) { r.Fingerprints = append(r.Fingerprints, 1) }, "23514"},
	} {
		w := newWorld(t, 2)
		v, second := w.load(0), w.load(1)
		r := newRun(v, 'a', 1, 2)
		c.damage(w, v, &r)
		before := w.logs()
		// The other log is all right: it must not move either.
		err := w.append(t.Context(), w.conn, newRun(second, 'a', 3), r)
		if pgtx.Code(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		if diff := cmp.Diff(before, w.logs()); diff != "" {
			t.Errorf("%s: the logs moved: %s", c.name, diff)
		}
	}
}

// logs is what the tables say, log by log.
func (w *world) logs() []string {
	w.t.Helper()
	rows, err := w.Owner.Query(w.t.Context(), `SELECT l::text FROM `+w.Relation("logs")+` l UNION ALL
		SELECT r.log || ' ' || r.seq || ' ' || r.run_id || ' ' || coalesce(r.fingerprints::text, 'null') FROM `+w.Relation("runs")+` r
		ORDER BY 1`)
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// TestAppendOtherTransaction: a COMMIT smuggled in between fence and log.
func TestAppendOtherTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	tx, err := pgtx.Begin(t.Context(), w.conn, patient)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context(), w.store.Append("1", []Run{newRun(v, 'a', 1)})); pgtx.Code(err) != pgtx.CodeOtherTx {
		t.Errorf("%v, want %s", err, pgtx.CodeOtherTx)
	}
	if diff := same(v, w.load(0)); diff != "" {
		t.Error(diff)
	}
}

// TestAppendWritesTheAudit: what a run says about its partitions.
func TestAppendWritesTheAudit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	stamp := time.Date(2026, 3, 4, 5, 6, 7, 8000, time.UTC)
	runs := []Run{newRun(w.load(1), 'b', 7), newRun(w.load(0), 'a', 9, 3)}
	runs[1].Newest = stamp
	for i := range runs {
		n := int32(1 - i)
		runs[i].Ranges = []Range{{
			Claim: stream.Claim{Partition: w.part(n), Owner: stream.UUID{5, byte(n)}, Epoch: 40 + int64(n), Next: 100},
			To:    120, Read: 20, Applied: 11 + int64(n), Duplicate: 6, Dead: 3 - int64(n),
		}}
	}
	if err := w.append(t.Context(), w.conn, runs...); err != nil {
		t.Fatal(err)
	}
	rows, err := w.Owner.Query(t.Context(), `SELECT a.partition, a.from_offset, a.to_offset, a.owner, a.epoch, a.read, a.applied,
		a.duplicate, a.dead, a.seq, a.run_id, r.newest FROM `+w.Relation("audit")+` a JOIN `+w.Relation("runs")+` r USING (log, seq) ORDER BY 1`)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, func(r pgx.CollectableRow) ([]any, error) {
		v, err := r.Values()
		if at, ok := v[11].(time.Time); ok {
			v[11] = at.UTC()
		}
		return v, err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]any{
		{int32(0), int64(100), int64(120), [16]byte{5, 0}, int64(40), int64(20), int64(11), int64(6), int64(3), int64(1), [16]byte(runs[1].ID), stamp},
		{int32(1), int64(100), int64(120), [16]byte{5, 1}, int64(41), int64(20), int64(12), int64(6), int64(2), int64(1), [16]byte(runs[0].ID), nil},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestAppendLockOrder: whatever order the logs are named in, the lower id is locked
// first, so two transactions never wait for each other in a circle. While an append
// waits for the first log it must not hold the second.
func TestAppendLockOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	for _, backwards := range []bool{false, true} {
		runs := []Run{newRun(w.load(0), 'm'), newRun(w.load(1), 'm')}
		first, second := runs[0].View.Log, runs[1].View.Log
		if backwards {
			slices.Reverse(runs)
		}
		holder := w.lock(first)
		conn := w.Conn(t)
		ended := make(chan error, 1)
		go func() { ended <- w.append(t.Context(), conn, runs...) }()
		for waits := false; !waits; {
			if err := w.Owner.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(conn.PgConn().PID())).Scan(&waits); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.lock(second).Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := holder.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// lock holds a log's row, which nobody else may hold.
func (w *world) lock(log int64) pgx.Tx {
	w.t.Helper()
	tx, err := w.Owner.Begin(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := tx.Exec(w.t.Context(), "SELECT FROM "+w.Relation("logs")+" WHERE id = $1 FOR NO KEY UPDATE NOWAIT", log); err != nil {
		w.t.Errorf("log %d: %v", log, err)
	}
	return tx
}

// TestCreateOnce: a second member, or a second attempt, makes no second log.
func TestCreateOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	before := w.logs()
	w.create(0, 2)
	if diff := cmp.Diff(before, w.logs()); diff != "" {
		t.Error(diff)
	}
	w.create(1, 3)
	if v := w.load(3); v.Head != 0 || v.Log == 0 {
		t.Errorf("%+v", v)
	}
	if n := len(w.logs()); n != 4 {
		t.Errorf("%d logs, want 4", n)
	}
}

// TestHeads: the answer for the logs that are open.
func TestHeads(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3)
	a, b, closed := w.load(0), w.load(1), w.load(2).Log
	w.write(b, 'a', 1)
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET state = 'closed' WHERE partition = 2")
	type names struct{ head, manifest stream.UUID }
	got := map[int64]names{}
	err := pgtx.Once(t.Context(), w.conn, patient,
		w.store.Heads([]int64{b.Log, a.Log, closed, 1 << 40}, func(log int64, head, manifest stream.UUID) {
			got[log] = names{head, manifest}
		}))
	if err != nil {
		t.Fatal(err)
	}
	want := map[int64]names{a.Log: {a.HeadID, a.manifest}, b.Log: {b.HeadID, b.manifest}}
	if !maps.Equal(want, got) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestNoLog: a partition without an open log is an error that says so.
func TestNoLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	if _, err := w.store.Load(t.Context(), w.conn, patient, w.id, w.part(5), nil); !errors.Is(err, ErrNoLog) {
		t.Errorf("load: %v", err)
	}
	if err := w.catchUp(v, 5); !errors.Is(err, ErrNoLog) {
		t.Errorf("catch up: %v", err)
	}
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET state = 'closed'")
	if err := w.catchUp(v, 0); !errors.Is(err, ErrLogClosed) {
		t.Errorf("catch up with a closed log: %v", err)
	}
}
