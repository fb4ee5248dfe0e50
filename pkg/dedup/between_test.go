package dedup

import (
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// backup sets the tables aside and returns what sets them back: the database goes
// back, as when a lagging replica is promoted.
func (w *world) backup() (goBack func()) {
	w.t.Helper()
	tables := []string{"runs", "segments", "blocks", "gates"}
	for _, table := range append(tables, "logs") {
		w.Exec(w.t, "DROP TABLE IF EXISTS "+w.Relation("aside_"+table))
		w.Exec(w.t, "CREATE TABLE "+w.Relation("aside_"+table)+" AS TABLE "+w.Relation(table))
	}
	return func() {
		w.t.Helper()
		var sql strings.Builder
		name := strings.NewReplacer("@.", pgx.Identifier{w.Schema}.Sanitize()+".")
		sql.WriteString("BEGIN;")
		for _, table := range tables {
			sql.WriteString("DELETE FROM @." + table + ";")
		}
		sql.WriteString(`DELETE FROM @.logs WHERE id NOT IN (SELECT id FROM @.aside_logs);
			SELECT setval(pg_get_serial_sequence('@.logs', 'id'), (SELECT max(id) FROM @.logs));
			UPDATE @.logs l SET state = a.state, generation = a.generation, head = a.head, head_id = a.head_id, manifest = a.manifest,
				sealed = a.sealed FROM @.aside_logs a WHERE a.id = l.id;`)
		for _, table := range tables {
			sql.WriteString("INSERT INTO @." + table + " SELECT * FROM @.aside_" + table + ";")
		}
		if _, err := w.Owner.Exec(w.t.Context(), name.Replace(sql.String())+"COMMIT", pgx.QueryExecModeSimpleProtocol); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) damage(sql string) {
	w.t.Helper()
	w.Exec(w.t, sql)
}

// TestRunsInBetween holds one row for each way in which what lies between a view
// and its log proves nothing. The view must be dropped (or its commit refused), and
// a view loaded afresh must be exact.
func TestRunsInBetween(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		// story starts with a view at run 3 of log 0 and may damage anything.
		story func(w *world, v *View)
		want  error
		lost  bool // the log itself is damaged: a fresh load must refuse it too
	}{
		{name: "nothing happened", story: func(*world, *View) {}},
		{name: "two more runs", story: func(w *world, _ *View) {
			o := w.load(0)
			w.write(o, 'b', 50)
			w.write(o, 'b')
		}},
		{
			// Run 4 is known here and lost by a failover; another member appends
			// another run 4. Counted by numbers nothing is missing, and run 4's lost
			// keys would be "duplicates" for ever.
			name: "the head's run is another now", want: ErrDropView,
			story: func(w *world, v *View) {
				back := w.backup()
				w.write(v, 'a', 40)
				back()
				w.write(w.load(0), 'b', 41)
			},
		},
		{
			name: "the head's run is another, and the log went on", want: ErrDropView,
			story: func(w *world, v *View) {
				back := w.backup()
				w.write(v, 'a', 40)
				back()
				o := w.load(0)
				w.write(o, 'b', 41)
				w.write(o, 'b', 42)
				w.write(o, 'b', 43)
			},
		},
		{
			name: "the log is behind the view", want: ErrDropView,
			story: func(w *world, v *View) {
				back := w.backup()
				w.write(v, 'a', 40)
				back()
			},
		},
		{
			name: "the whole log went back to its beginning", want: ErrDropView,
			story: func(w *world, _ *View) {
				w.damage("DELETE FROM " + w.Relation("runs") + "; UPDATE " + w.Relation("logs") + " SET head = 0")
			},
		},
		{
			name: "a run is missing", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				o := w.load(0)
				for n := range 3 {
					w.write(o, 'b', 50+n)
				}
				w.damage("DELETE FROM " + w.Relation("runs") + " WHERE seq = 5")
			},
		},
		{
			name: "the last run is missing", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				o := w.load(0)
				w.write(o, 'b', 50)
				w.write(o, 'b', 51)
				w.damage("DELETE FROM " + w.Relation("runs") + " WHERE seq = 5")
			},
		},
		{
			name: "a whole page is missing", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.damage("UPDATE " + w.Relation("logs") + " SET head = 3 + 3 * 64 WHERE partition = 0")
				w.damage("UPDATE " + w.Relation("logs") + " SET head_id = gen_random_uuid() WHERE partition = 0")
			},
		},
		{
			// Audit rows are pruned, the view's head with them: nothing proves it.
			name: "the row at the view's head is gone", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.write(w.load(0), 'b', 50)
				w.damage("DELETE FROM " + w.Relation("runs") + " WHERE seq = 3")
			},
		},
		{
			// Audit rows outlive their fingerprints.
			name: "a run has no fingerprints any more", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.write(w.load(0), 'b', 50)
				w.damage("UPDATE " + w.Relation("runs") + " SET fingerprints = NULL WHERE seq = 4")
			},
		},
		{
			name: "sealed beyond the view's head", want: ErrDropView,
			story: func(w *world, _ *View) {
				o := w.load(0)
				w.write(o, 'b', 50)
				w.seal(o)
			},
		},
		{
			name: "sealed up to the view's head by somebody else", want: ErrDropView,
			story: func(w *world, _ *View) { w.seal(w.load(0)) },
		},
		{
			// The manifest can return to an old value: it must not hide this.
			name: "sealed beyond the view's head under its own manifest", want: ErrDropView,
			story: func(w *world, _ *View) {
				o := w.load(0)
				w.write(o, 'b', 50)
				before := o.manifest
				w.seal(o)
				w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET manifest = $1 WHERE partition = 0", [16]byte(before))
			},
		},
		{
			name: "the manifest is another", want: ErrDropView,
			story: func(w *world, _ *View) {
				w.damage("UPDATE " + w.Relation("logs") + " SET manifest = gen_random_uuid() WHERE partition = 0")
			},
		},
		{
			name: "the last run is not the log's head", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.write(w.load(0), 'b', 50)
				w.damage("UPDATE " + w.Relation("runs") + " SET run_id = gen_random_uuid() WHERE seq = 4")
			},
		},
		{
			name: "the log has the view's number under another name", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.damage("UPDATE " + w.Relation("logs") + " SET head_id = gen_random_uuid() WHERE partition = 0")
			},
		},
		{
			name: "closed, and another one is open", want: ErrDropView,
			story: func(w *world, _ *View) {
				// A copy in everything but its id.
				w.damage("UPDATE " + w.Relation("logs") + " SET state = 'closed' WHERE partition = 0")
				w.damage(`INSERT INTO ` + w.Relation("logs") + ` (pipeline, topic_id, partition, generation, head, head_id, manifest)
					SELECT pipeline, topic_id, partition, generation, head, head_id, manifest FROM ` + w.Relation("logs") + ` WHERE partition = 0`)
				w.damage(`INSERT INTO ` + w.Relation("runs") + ` (log, seq, run_id, ranges, fingerprints) SELECT l.id, seq, run_id, ranges, fingerprints
					FROM ` + w.Relation("runs") + ` CROSS JOIN ` + w.Relation("logs") + ` l WHERE l.state = 'open'`)
			},
		},
		{
			// The view stands at the end of what is sealed, the log too, and under the
			// same manifest: only the name of the head tells them apart.
			name: "all is sealed, the head has another name", want: ErrDropView, lost: true,
			story: func(w *world, _ *View) {
				w.damage("UPDATE " + w.Relation("logs") + " SET sealed = 3, head_id = gen_random_uuid() WHERE partition = 0")
			},
		},
		{
			name: "closed", want: ErrLogClosed, lost: true,
			story: func(w *world, _ *View) {
				w.damage("UPDATE " + w.Relation("logs") + " SET state = 'closed' WHERE partition = 0")
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			v := w.load(0)
			for n := range 3 {
				w.write(v, 'a', n)
			}
			c.story(w, v)
			err := w.catchUp(v, 0)
			if !errors.Is(err, c.want) {
				t.Errorf("catch up: %v, want %v", err, c.want)
			}
			fresh, loadErr := w.store.Load(t.Context(), w.conn, patient, w.id, w.part(0), nil)
			switch {
			case c.lost:
				if loadErr == nil {
					t.Errorf("a damaged log was loaded: %d keys", fresh.Keys())
				}
			case loadErr != nil:
				t.Errorf("load: %v", loadErr)
			default:
				w.exact(fresh)
				if err == nil {
					w.exact(v)
				}
				if err := w.append(t.Context(), w.conn, newRun(fresh, 'z', 77)); err != nil {
					t.Errorf("a commit on the fresh view: %v", err)
				}
			}
		})
	}
}

// exact fails unless the view knows the keys of its log, and no others.
func (w *world) exact(v *View) {
	w.t.Helper()
	var n int64
	var all []byte
	if err := w.Owner.QueryRow(w.t.Context(), `SELECT l.head, coalesce((SELECT string_agg(fingerprints, '') FROM (
			SELECT r.fingerprints FROM `+w.Relation("runs")+` r WHERE r.log = l.id AND r.seq > l.sealed
			UNION ALL SELECT b.fingerprints FROM `+w.Relation("blocks")+` b JOIN `+w.Relation("segments")+` s ON s.id = b.segment
			WHERE s.log = l.id AND s.state = 'live') x), '') FROM `+w.Relation("logs")+" l WHERE l.id = $1", v.Log).Scan(&n, &all); err != nil {
		w.t.Fatal(err)
	}
	want := map[int]bool{}
	for ; len(all) >= 16; all = all[16:] {
		want[int(slotAt(all).lo)] = true
	}
	if n != v.Head {
		w.t.Errorf("the view's head is %d, its log's %d", v.Head, n)
	}
	for k := range 100 {
		if dup := w.known(v, k)[k]; dup != want[k] {
			w.t.Errorf("key %d: duplicate %v, want %v", k, dup, want[k])
		}
	}
}
