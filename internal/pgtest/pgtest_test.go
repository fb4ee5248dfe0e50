package pgtest_test

import (
	"testing"
	"time"

	"effectonce/internal/pgtest"
)

func TestNew(t *testing.T) {
	t.Parallel()
	start := time.Now()
	db := pgtest.New(t)
	t.Logf("took %s", time.Since(start))
	table := db.Table(t, "orders", "id text PRIMARY KEY")
	if _, err := db.Runtime.Exec(t.Context(), "INSERT INTO "+table+" VALUES ('a')"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Runtime.Exec(t.Context(), "SELECT FROM "+db.Relation("positions")); err != nil {
		t.Fatal(err)
	}
}
