package migrations_test

import (
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
)

// TestShelvesKeepRowsAndRights: blocks that were there before stay where they are,
// and a role that could write blocks can, without being granted it again.
func TestShelvesKeepRowsAndRights(t *testing.T) {
	t.Parallel()
	const role = "effectonce_test_runtime"
	db := pgtest.New(t)
	schema := db.Schema + "_m"
	m := open(t, db, config(t, db.OwnerDSN), schema)
	up(t, m)
	blocks := pgx.Identifier{schema, "blocks"}.Sanitize()
	for v := len(all()); v >= 7; v-- {
		if _, err := m.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	db.Exec(t, "GRANT USAGE ON SCHEMA "+pgx.Identifier{schema}.Sanitize()+" TO "+role)
	db.Exec(t, "GRANT SELECT, INSERT, DELETE ON "+blocks+" TO "+role)
	insert := "INSERT INTO " + blocks + " (segment, first, fingerprints) VALUES ($1, $2, $2)"
	early, shelf := [16]byte{0xef}, [16]byte{'b', 'l', 'o', 3, 1}
	first := make([]byte, 16)
	db.Exec(t, insert, early, first)

	up(t, m)
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), insert, shelf, first); err != nil {
		t.Fatal(err)
	}
	var rows, shelved, settled int
	if err := conn.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE tableoid = to_regclass($1)) FROM `+blocks,
		pgx.Identifier{schema, "blocks_shelf_3"}.Sanitize()).Scan(&rows, &shelved); err != nil || rows != 2 || shelved != 1 {
		t.Errorf("%d rows, %d on the shelf, %v", rows, shelved, err)
	}
	if err := db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relnamespace = $1::regnamespace
		AND relname ~ '^blocks_(kept|shelf_.)$' AND 'autovacuum_vacuum_threshold=4000' = ANY (reloptions)`,
		pgx.Identifier{schema}.Sanitize()).Scan(&settled); err != nil || settled != 9 {
		t.Errorf("%d of 9 tables have autovacuum's settings, %v", settled, err)
	}

	for v := len(all()); v >= 7; v-- {
		if _, err := m.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM "+blocks).Scan(&rows); err != nil || rows != 2 {
		t.Errorf("%d rows after the way back, %v", rows, err)
	}
}
