package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

// A lagging copy of the database becomes the database: rows, runs, segments and
// effects go back together while members hold their claims and are idle. Nothing but
// the watch would notice.
func TestTheDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scope  string
		memory int
	}{{"partition", 0}, {"topic", 2}} {
		t.Run("scope "+c.scope, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 4, 41)
			w.scatter(c.scope)
			w.memory = c.memory
			w.goesBack()
		})
	}
}

func (w *world) goesBack() {
	w.t.Helper()
	a, b := w.start(), w.start()
	w.balanced()
	w.produce(5_000, nil)
	w.drained()
	w.saveAside()
	w.produce(3_000, nil)
	w.exact("before", w.drained())

	w.setBack()
	w.exact("set back", nil)
	w.exact("read again", w.drained())
	if a.metric("effectonce_differences_total")+b.metric("effectonce_differences_total") == 0 {
		w.t.Error("no member noticed")
	}
	w.produce(3_000, nil)
	w.exact("afterwards", w.drained())
}

// copies are the tables that go back, a log before its runs and segments.
func (w *world) copies() []string {
	return []string{w.db.Relation("positions"), w.db.Relation("logs"), w.db.Relation("runs"), w.db.Relation("segments"), w.db.Relation("blocks"), w.db.Relation("dead_letters"), w.effects}
}

func (w *world) copyOf(table string) string {
	name := strings.Split(strings.ReplaceAll(table, `"`, ""), ".")
	return pgx.Identifier{w.db.User, "copy_of_" + name[1]}.Sanitize()
}

// saveAside copies everything in one snapshot.
func (w *world) saveAside() {
	w.t.Helper()
	script := []string{"BEGIN ISOLATION LEVEL REPEATABLE READ"}
	for _, table := range w.copies() {
		script = append(script, "CREATE TABLE "+w.copyOf(table)+" AS SELECT * FROM "+table)
	}
	w.db.Exec(w.t, strings.Join(append(script, "COMMIT"), ";"))
}

// setBack puts the copies in place of what is there, in one transaction.
func (w *world) setBack() {
	w.t.Helper()
	script := []string{"BEGIN"}
	for _, table := range slices.Backward(w.copies()) { // runs before their logs
		script = append(script, "DELETE FROM "+table)
	}
	for _, table := range w.copies() {
		script = append(script, "INSERT INTO "+table+" OVERRIDING SYSTEM VALUE SELECT * FROM "+w.copyOf(table))
	}
	w.db.Exec(w.t, strings.Join(append(script, "COMMIT"), ";"))
}
