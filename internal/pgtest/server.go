package pgtest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The two roles are shared by all tests of a server and stay there. Their
// passwords are their names, for a server that asks for one.
const (
	ownerRole   = "effectonce_test_owner"
	runtimeRole = "effectonce_test_runtime"
)

const variable = "EFFECTONCE_TEST_POSTGRES"

// DSN returns the address of the test server as its administrator, from the
// environment or from what scripts/services wrote.
func DSN(tb testing.TB) string {
	tb.Helper()
	if dsn := os.Getenv(variable); dsn != "" {
		return dsn
	}
	root, err := root()
	if err != nil {
		tb.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, ".services", "env"))
	if err != nil {
		tb.Fatalf("no Postgres to test with: run scripts/services up, or set %s (%v)", variable, err)
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if name == variable {
			return strings.Trim(value, `'"`)
		}
	}
	tb.Fatalf("%s/.services/env has no %s: run scripts/services up", root, variable)
	return ""
}

// root is the directory of go.mod: tests run in their package's directory.
func root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if filepath.Dir(dir) == dir {
			return "", fmt.Errorf("no go.mod above the working directory; set %s", variable)
		}
		dir = filepath.Dir(dir)
	}
}

// as is the DSN with another role. In the keyword form the last mention wins.
func as(tb testing.TB, dsn, role string) string {
	tb.Helper()
	if !strings.HasPrefix(dsn, "postgres://") && !strings.HasPrefix(dsn, "postgresql://") {
		return fmt.Sprintf("%s user=%s password=%s", dsn, role, role)
	}
	u, err := url.Parse(dsn)
	if err != nil {
		tb.Fatalf("%s is not a URL: %v", variable, err)
	}
	u.User = url.UserPassword(role, role)
	return u.String()
}

// prepare creates the two roles where they are missing and drops what tests that
// were killed have left.
func prepare(ctx context.Context, tb testing.TB, dsn string) {
	tb.Helper()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		tb.Fatalf("connect to the test Postgres (run scripts/services up): %v", err)
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is left to lose
	const ready = `SELECT count(*) = 2 FROM pg_roles
		WHERE rolname = ANY ($1) AND (rolname = $2 OR has_database_privilege(oid, current_database(), 'CREATE'))`
	var done bool
	if err := conn.QueryRow(ctx, ready, []string{ownerRole, runtimeRole}, runtimeRole).Scan(&done); err != nil {
		tb.Fatalf("look for the test roles: %v", err)
	}
	if !done {
		roles(ctx, tb, conn)
	}
	sweep(ctx, tb, conn)
}

// roles belong to the whole server, and two processes may start on a fresh one:
// they take turns.
func roles(ctx context.Context, tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	create := strings.NewReplacer("@owner@", ownerRole, "@runtime@", runtimeRole).Replace(`
		SELECT pg_advisory_xact_lock(hashtext('effectonce test roles'));
		DO $$ BEGIN
			IF to_regrole('@owner@') IS NULL THEN
				CREATE ROLE @owner@ LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '@owner@';
			END IF;
			IF to_regrole('@runtime@') IS NULL THEN
				CREATE ROLE @runtime@ LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE PASSWORD '@runtime@';
			END IF;
			EXECUTE format('GRANT CREATE ON DATABASE %I TO @owner@', current_database());
		END $$`)
	if _, err := conn.Exec(ctx, create); err != nil {
		tb.Fatalf("create the test roles: %v", err)
	}
}

// forgotten is the age at which no test can still be at work in a schema.
const forgotten = 24 * time.Hour

// sweep drops the schemas that no clean-up will: their test's process was killed.
func sweep(ctx context.Context, tb testing.TB, conn *pgx.Conn) {
	tb.Helper()
	rows, err := conn.Query(ctx, "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, $1)", prefix)
	if err != nil {
		tb.Fatalf("look for old schemas: %v", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		tb.Fatalf("look for old schemas: %v", err)
	}
	for _, name := range names {
		stamp, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "_")
		if made, err := strconv.ParseInt(stamp, 36, 64); err != nil || time.Since(time.Unix(made, 0)) < forgotten {
			continue
		}
		// Another process may sweep at the same time: who comes second finds nothing.
		if _, err := conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+quote(name)+" CASCADE"); err != nil {
			tb.Logf("drop old schema %s: %v", name, err)
		}
	}
}
