package pgtest_test

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtest"
)

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

func TestRoles(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	orders := db.Table(t, "orders", "id bigserial, name text")
	for _, test := range []struct{ sql, code string }{
		{"INSERT INTO " + orders + " (name) VALUES ('a')", ""},
		{"UPDATE " + orders + " SET name = 'b'", ""},
		{"DELETE FROM " + orders, "42501"},
		{"TRUNCATE " + orders, "42501"},
		{"CREATE TABLE " + pgx.Identifier{db.User, "mine"}.Sanitize() + " ()", "42501"},
		{"SELECT FROM orders", "42P01"},
		{"SELECT FROM positions", "42P01"},
		{"SELECT FROM " + db.Relation("positions"), ""},
		{"DROP TABLE " + db.Relation("positions"), "42501"},
	} {
		if _, err := db.Runtime.Exec(t.Context(), test.sql); code(err) != test.code || (test.code == "" && err != nil) {
			t.Errorf("%s: %v", test.sql, err)
		}
	}
	var super bool
	if err := db.Conn(t).QueryRow(t.Context(), "SELECT rolsuper OR rolcreaterole OR rolcreatedb FROM pg_roles WHERE rolname = current_user").
		Scan(&super); err != nil || super {
		t.Errorf("the runtime role is privileged: %v, %v", super, err)
	}
	db.Exec(t, "INSERT INTO orders (name) VALUES ($1)", "the owner finds its own tables")
}

// Nothing is left of a test, also when it created what it said nothing about.
func TestNothingIsLeft(t *testing.T) {
	var left *pgtest.DB
	t.Run("one", func(t *testing.T) {
		left = pgtest.New(t)
		left.Exec(t, "CREATE TABLE a (id int); CREATE VIEW b AS SELECT * FROM a")
	})
	db := pgtest.New(t)
	for _, schema := range []string{left.Schema, left.User} {
		var there bool
		if err := db.Owner.QueryRow(t.Context(), "SELECT to_regnamespace($1) IS NOT NULL", schema).Scan(&there); err != nil || there {
			t.Errorf("%s is still there: %v", schema, err)
		}
	}
}

// A killed test has left its schemas, another may still be at work in its own.
func TestOldSchemasAreSwept(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	_, mine, _ := strings.Cut(strings.TrimPrefix(db.Schema, "eo_test_"), "_")
	name := func(age time.Duration) string {
		return "eo_test_" + strconv.FormatInt(time.Now().Add(-age).Unix(), 36) + "_" + mine
	}
	old, young := name(25*time.Hour), name(23*time.Hour)
	db.Exec(t, "CREATE SCHEMA "+old)
	db.Exec(t, "CREATE SCHEMA "+young)
	t.Cleanup(func() {
		if _, err := db.Owner.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+young); err != nil {
			t.Error(err)
		}
	})
	pgtest.New(t)
	var oldThere, youngThere bool
	if err := db.Owner.QueryRow(t.Context(), "SELECT to_regnamespace($1) IS NOT NULL, to_regnamespace($2) IS NOT NULL", old, young).
		Scan(&oldThere, &youngThere); err != nil {
		t.Fatal(err)
	}
	if oldThere || !youngThere {
		t.Errorf("old there: %v, young there: %v", oldThere, youngThere)
	}
}
