package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// oldestServer is the first Postgres we work with, as server_version_num.
const oldestServer = 140000

// ErrServerTooOld says that the server must be upgraded first.
var ErrServerTooOld = errors.New("Postgres 14 or later is required") //nolint:staticcheck // a product's name

func checkServer(num int) error {
	if num < oldestServer {
		return fmt.Errorf("%w: the server is %d.%d", ErrServerTooOld, num/10000, num%10000)
	}
	return nil
}

// OutOfRangeError says that the schema is not one this binary works with. Found
// is 0 when there is none. Its text tells the operator what to do.
type OutOfRangeError struct {
	Schema           string
	Found, Low, High int64
}

func (e *OutOfRangeError) Error() string {
	text := fmt.Sprintf("schema %q is at version %d, this binary works with %d to %d: ", e.Schema, e.Found, e.Low, e.High)
	switch {
	case e.Found == 0:
		return fmt.Sprintf("schema %q has no tables of ours, this binary works with versions %d to %d: run processor migrate up",
			e.Schema, e.Low, e.High)
	case e.Found < e.Low:
		return text + "run processor migrate up"
	}
	return text + "run a newer processor, or processor migrate down with the newer one"
}

func (m *Migrator) outOfRange(found int64) error {
	low, high := Range()
	return &OutOfRangeError{Schema: m.schema, Found: found, Low: low, High: high}
}

// Check returns an *OutOfRangeError unless this binary works with the schema as
// it is.
func (m *Migrator) Check(ctx context.Context) error {
	found, err := m.Version(ctx)
	if err != nil {
		return err
	}
	if low, high := Range(); found < low || found > high {
		return m.outOfRange(found)
	}
	return nil
}

// Version returns the version of the newest migration that is applied, 0 if the
// schema or our tables do not exist.
func (m *Migrator) Version(ctx context.Context) (int64, error) {
	installed, err := m.installed(ctx)
	if err != nil || !installed {
		return 0, err
	}
	var version int64
	query := "SELECT coalesce(pg_catalog.max(version_id), 0) FROM " + versionTable(m.schema)
	if err := m.db.QueryRowContext(ctx, query).Scan(&version); err != nil {
		return 0, fmt.Errorf("schema version: %w", err)
	}
	return version, nil
}

// Status is one migration, known to this binary or found in the schema.
type Status struct {
	Version int64
	Name    string    // empty: applied by a newer binary
	Applied time.Time // zero: pending
}

// Status lists all migrations by version. It waits for nobody.
func (m *Migrator) Status(ctx context.Context) ([]Status, error) {
	var list []Status
	for _, s := range m.scripts {
		list = append(list, Status{Version: s.version, Name: s.name})
	}
	installed, err := m.installed(ctx)
	if err != nil || !installed {
		return list, err
	}
	rows, err := m.db.QueryContext(ctx, "SELECT version_id, tstamp FROM "+versionTable(m.schema)+
		" WHERE version_id OPERATOR(pg_catalog.>) 0 ORDER BY version_id")
	if err != nil {
		return nil, fmt.Errorf("schema status: %w", err)
	}
	defer func() { _ = rows.Close() }() // its error is rows.Err
	for rows.Next() {
		var s Status
		if err := rows.Scan(&s.Version, &s.Applied); err != nil {
			return nil, fmt.Errorf("schema status: %w", err)
		}
		list = merge(list, s)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("schema status: %w", err)
	}
	return list, nil
}

// merge notes that a migration is applied.
func merge(list []Status, applied Status) []Status {
	for i := range list {
		if list[i].Version == applied.Version {
			list[i].Applied = applied.Applied
			return list
		}
	}
	return append(list, applied)
}

func (m *Migrator) installed(ctx context.Context) (bool, error) {
	return m.exists(ctx, `SELECT FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n
		ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
		WHERE n.nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text
		  AND c.relname OPERATOR(pg_catalog.=) '`+versionTableName+`'`)
}

func (m *Migrator) exists(ctx context.Context, query string) (bool, error) {
	switch err := m.db.QueryRowContext(ctx, query, m.schema).Scan(); {
	case errors.Is(err, sql.ErrNoRows):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look for schema: %w", err)
	}
	return true, nil
}

// prepare creates the schema and the version table where they are missing. A
// creator that lost the race to another learns it from the SQLSTATE: the error
// comes only after the other has committed.
func (m *Migrator) prepare(ctx context.Context) error {
	// CREATE SCHEMA IF NOT EXISTS asks for CREATE on the database even if the
	// schema exists, and a DBA may have made it for us.
	made, err := m.exists(ctx, "SELECT FROM pg_catalog.pg_namespace WHERE nspname OPERATOR(pg_catalog.=) $1::pg_catalog.text")
	if err != nil {
		return err
	}
	if !made {
		if _, err := m.db.ExecContext(ctx, "CREATE SCHEMA "+quote(m.schema)); err != nil && !exists(err) {
			return fmt.Errorf("create schema: %w", err)
		}
	}
	installed, err := m.installed(ctx)
	if err != nil || installed {
		return err
	}
	if _, err := m.db.ExecContext(ctx, createVersionTable(m.schema)); err != nil && !exists(err) {
		return fmt.Errorf("create version table: %w", err)
	}
	return nil
}

// exists tells "somebody else created it". Which of these codes comes depends on
// how far the other one was: the schema, the table, its row type, or a wait on the
// catalog's unique index.
func exists(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && slices.Contains([]string{"42P06", "42P07", "42710", "23505"}, pg.Code)
}
