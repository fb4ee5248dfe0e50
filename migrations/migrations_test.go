package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/migrations"
)

// open returns a migrator of the owner role for a schema that does not exist yet
// and is dropped when the test ends.
func open(t *testing.T, db *pgtest.DB, schema string) *migrations.Migrator {
	t.Helper()
	config, err := pgx.ParseConfig(db.OwnerDSN)
	if err != nil {
		t.Fatal(err)
	}
	m, err := migrations.Open(t.Context(), config, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

func TestUpDownUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, db.Schema+"_m")
	steps, err := m.Up(t.Context())
	t.Log(steps, err)
	if err := m.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m.Grant(t.Context(), "effectonce_test_runtime"); err != nil {
		t.Fatal(err)
	}
	steps, err = m.Down(t.Context())
	t.Log(steps, err)
	t.Log(m.Check(t.Context()))
	steps, err = m.Up(t.Context())
	t.Log(steps, err)
	t.Log(m.Status(t.Context()))
}
