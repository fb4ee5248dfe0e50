package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/migrations"
)

// Everything `run` asks of the schema it asks as the runtime role.
func TestCheckAsRuntime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	low, high := migrations.Range()
	m := open(t, db, config(t, db.RuntimeDSN), db.Schema)
	if err := m.Check(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, test := range []struct {
		damage string
		found  int64
		advice string
	}{
		{"INSERT INTO @.goose_db_version (version_id, is_applied) VALUES (9000, true)", 9000, "newer processor"},
		{"DELETE FROM @.goose_db_version WHERE version_id > 0", 0, "processor migrate up"},
		{"DROP TABLE @.goose_db_version", 0, "processor migrate up"},
	} {
		db.Exec(t, strings.ReplaceAll(test.damage, "@", pgx.Identifier{db.Schema}.Sanitize()))
		err := m.Check(t.Context())
		got, ok := errors.AsType[*migrations.OutOfRangeError](err)
		if !ok {
			t.Fatalf("%s: %v", test.damage, err)
		}
		want := &migrations.OutOfRangeError{Schema: db.Schema, Found: test.found, Low: low, High: high}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", test.damage, diff)
		}
		if !strings.Contains(err.Error(), test.advice) {
			t.Errorf("%q does not say what to do", err)
		}
	}
}

func TestCheckWithoutSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.RuntimeDSN), db.Schema+"_missing")
	if _, ok := errors.AsType[*migrations.OutOfRangeError](m.Check(t.Context())); !ok {
		t.Errorf("%v", m.Check(t.Context()))
	}
	list, err := m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if !s.Applied.IsZero() {
			t.Errorf("applied: %+v", s)
		}
	}
}

// A role without a grant gets the server's word for it, not "no tables".
func TestCheckWithoutGrant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := db.Schema + "_m"
	up(t, open(t, db, config(t, db.OwnerDSN), schema))
	err := open(t, db, config(t, db.RuntimeDSN), schema).Check(t.Context())
	if code(err) != "42501" {
		t.Errorf("%v", err)
	}
}

// A newer binary has migrated: this one neither undoes what it does not know nor
// hides it.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.OwnerDSN), db.Schema)
	db.Exec(t, "INSERT INTO "+db.Relation("goose_db_version")+" (version_id, is_applied) VALUES (9000, true)")
	if _, err := m.Down(t.Context()); err == nil {
		t.Error("undone")
	} else if _, ok := errors.AsType[*migrations.OutOfRangeError](err); !ok {
		t.Error(err)
	}
	if got := up(t, m); got != nil {
		t.Errorf("applied %v", got)
	}
	list, err := m.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := list[len(list)-1]
	if last.Version != 9000 || last.Name != "" || last.Applied.IsZero() {
		t.Errorf("%+v", last)
	}
	if list[0].Name != "schema" || list[0].Applied.IsZero() {
		t.Errorf("%+v", list[0])
	}
}

// A migration that waits behind a table's lock must not make everybody else wait
// behind it for ever; it gives up, changes nothing, and says so.
func TestLockTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.OwnerDSN), db.Schema)
	conn := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM " + db.Relation("runs")} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	for at := len(all()); ; at-- { // the newest ones may do without the table
		_, err := m.Down(t.Context())
		if err == nil && at > 1 {
			continue
		}
		if !errors.Is(err, migrations.ErrLocked) {
			t.Errorf("%v", err)
		}
		if version, err := m.Version(t.Context()); err != nil || version != int64(at) {
			t.Errorf("version %d, %v: it was %d", version, err, at)
		}
		return
	}
}

// Another member's migration takes longer than anybody waits, or than the caller
// does. Both say so, and leave the lock to the next one.
func TestUpGivesUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := db.Schema + "_m"
	m := open(t, db, config(t, db.OwnerDSN), schema)
	up(t, m)
	if _, err := m.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	other, err := db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lock := "LOCK TABLE " + pgx.Identifier{schema, "goose_db_version"}.Sanitize() + " IN SHARE UPDATE EXCLUSIVE MODE"
	if _, err := other.Exec(t.Context(), lock); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if _, err := m.Up(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with a deadline: %v", err)
	}
	m.Impatient()
	if _, err := m.Up(t.Context()); !errors.Is(err, migrations.ErrLocked) {
		t.Errorf("impatient: %v", err)
	}
	if err := other.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all()[len(all())-1:], up(t, m)); diff != "" { // the one that was undone
		t.Error(diff)
	}
}

func TestRange(t *testing.T) {
	t.Parallel()
	low, high := migrations.Range()
	if low < 1 || high < low {
		t.Errorf("%d to %d", low, high)
	}
}
