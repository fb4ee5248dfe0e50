// Package pgtest gives each test a place of its own in a real Postgres: a schema
// with our tables, a schema for the test's tables, and pools for the two roles a
// deployment has. Tests work as the runtime role, which may do no more than
// migrations.Grant says; the owner is for set-up. It also starts servers of a test's
// own, to be crashed and failed over, and PgBouncer.
package pgtest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/migrations"
)

// patience bounds what a test helper waits for. It is not for timing anything.
const patience = 30 * time.Second

// prefix begins the name of every schema of ours; the time it was made follows.
const prefix = "eo_test_"

// lockTimeout turns a test that waits for a lock for ever into one that fails.
const lockTimeout = "30s"

// DB is one test's place in the database.
type DB struct {
	Schema string // our tables, migrated
	User   string // the test's own tables

	// Owner owns both schemas, may create tables, and finds unqualified names in
	// User.
	Owner    *pgxpool.Pool
	OwnerDSN string

	// Runtime is a plain LOGIN role with the rights of migrations.Grant on Schema
	// and SELECT, INSERT, UPDATE on what the owner creates in User. It finds no
	// unqualified name but the catalog's, as in a deployment nobody prepared.
	Runtime    *pgxpool.Pool
	RuntimeDSN string
}

// New makes the two schemas and drops them when the test ends. Tests that use it
// may run in parallel, also across processes.
func New(tb testing.TB) *DB {
	tb.Helper()
	return NewOn(tb, DSN(tb))
}

// NewOn makes them on another server than the usual one.
func NewOn(tb testing.TB, dsn string) *DB {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	prepare(ctx, tb, dsn)
	name := prefix + strconv.FormatInt(time.Now().Unix(), 36) + "_" + random()
	db := &DB{Schema: name, User: name + "_user", OwnerDSN: as(tb, dsn, ownerRole), RuntimeDSN: as(tb, dsn, runtimeRole)}
	db.Owner = pool(ctx, tb, db.OwnerDSN, quote(db.User))
	db.Runtime = pool(ctx, tb, db.RuntimeDSN, "pg_catalog")
	tb.Cleanup(func() { db.drop(tb) })
	db.create(ctx, tb)
	return db
}

// create sends everything in one message.
func (db *DB) create(ctx context.Context, tb testing.TB) {
	tb.Helper()
	schema, err := migrations.SQL(db.Schema, 0)
	if err != nil {
		tb.Fatal(err)
	}
	grants, err := migrations.GrantSQL(db.Schema, runtimeRole)
	if err != nil {
		tb.Fatal(err)
	}
	user := strings.NewReplacer("@user@", quote(db.User), "@role@", quote(runtimeRole)).Replace(`
		CREATE SCHEMA @user@;
		GRANT USAGE ON SCHEMA @user@ TO @role@;
		ALTER DEFAULT PRIVILEGES IN SCHEMA @user@ GRANT SELECT, INSERT, UPDATE ON TABLES TO @role@;
		ALTER DEFAULT PRIVILEGES IN SCHEMA @user@ GRANT USAGE ON SEQUENCES TO @role@;`)
	if _, err := db.Owner.Exec(ctx, schema+grants+user, pgx.QueryExecModeSimpleProtocol); err != nil {
		tb.Fatalf("create schemas: %v", err)
	}
}

// drop closes the runtime pool first: what it holds would stand in the way.
func (db *DB) drop(tb testing.TB) {
	tb.Helper()
	closed(tb, "runtime", db.Runtime)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	if _, err := db.Owner.Exec(ctx, fmt.Sprintf("DROP SCHEMA IF EXISTS %s, %s CASCADE", quote(db.Schema), quote(db.User))); err != nil {
		tb.Errorf("drop schemas (does a session still hold a lock?): %v", err)
	}
	closed(tb, "owner", db.Owner)
}

// closed waits for the pool's connections, and names the fault when a test kept
// one instead of waiting for ever.
func closed(tb testing.TB, name string, p *pgxpool.Pool) {
	tb.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.Close()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		tb.Errorf("%s pool: %d connections were not given back", name, p.Stat().AcquiredConns())
	}
}

func pool(ctx context.Context, tb testing.TB, dsn, searchPath string) *pgxpool.Pool {
	tb.Helper()
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		tb.Fatalf("test DSN: %v", err)
	}
	config.ConnConfig.RuntimeParams["search_path"] = searchPath
	config.ConnConfig.RuntimeParams["lock_timeout"] = lockTimeout
	config.MaxConns = 16
	p, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		tb.Fatalf("test pool: %v", err)
	}
	return p
}

// Table creates a table in User as the owner and returns its quoted, qualified
// name. The definition is what stands between the parentheses.
func (db *DB) Table(tb testing.TB, name, definition string) string {
	tb.Helper()
	table := quote(db.User, name)
	db.Exec(tb, "CREATE TABLE "+table+" ("+definition+")")
	return table
}

// Exec runs a statement as the owner, for set-up and for damage.
func (db *DB) Exec(tb testing.TB, sql string, args ...any) {
	tb.Helper()
	if _, err := db.Owner.Exec(tb.Context(), sql, args...); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// Conn opens a session of the runtime role beside the pool; it is closed when the
// test ends, if the test has not done so.
func (db *DB) Conn(tb testing.TB) *pgx.Conn {
	tb.Helper()
	config, err := pgx.ParseConfig(db.RuntimeDSN)
	if err != nil {
		tb.Fatalf("test DSN: %v", err)
	}
	config.RuntimeParams["lock_timeout"] = lockTimeout
	conn, err := pgx.ConnectConfig(tb.Context(), config)
	if err != nil {
		tb.Fatalf("test connection: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		_ = conn.Close(ctx) // a test may have ended the session on purpose
	})
	return conn
}

// Relation returns the quoted, qualified name of one of our tables or functions.
func (db *DB) Relation(name string) string { return quote(db.Schema, name) }

func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }

func random() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // never fails: it would end the process
	return hex.EncodeToString(b[:])
}
