// Package migrations owns the schema of our own tables: the SQL, embedded and in
// order, and the Migrator that applies it. Migrations only get added to; each one
// expands, and what it made superfluous is dropped a release later, so a binary
// works with a range of versions.
//
// Nothing relies on session state: every statement names its schema, and each
// migration sets its search path and timeouts for its own transaction. It works
// behind a transaction pooler that has two connections to give, one to hold the
// lock and one to work, however many members wait.
package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

// Migrator reads and changes the version of one schema. Close it after use.
type Migrator struct {
	schema  string
	db      *sql.DB
	scripts []script
	lock    *tableLock
	goose   *goose.Provider
}

// Step is one migration that was applied or undone.
type Step struct {
	Version int64
	Name    string
	Took    time.Duration
}

// Open connects and requires Postgres 14 or later (ErrServerTooOld). The schema
// need not exist. Up, Down and Grant want the owner's credentials; for the rest
// the runtime role's will do.
func Open(ctx context.Context, config *pgx.ConnConfig, schema string) (*Migrator, error) {
	scripts, err := load(schema)
	if err != nil {
		return nil, err
	}
	config = config.Copy()
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // nothing is prepared by name: a pooler may stand between
	m := &Migrator{schema: schema, db: stdlib.OpenDB(*config), scripts: scripts, lock: newTableLock(schema)}
	if err := m.init(ctx); err != nil {
		_ = m.db.Close() // the first error is the one to tell
		return nil, err
	}
	return m, nil
}

func (m *Migrator) init(ctx context.Context) error {
	var server int
	if err := m.db.QueryRowContext(ctx, "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4").Scan(&server); err != nil {
		return fmt.Errorf("server version: %w", err)
	}
	if err := checkServer(server); err != nil {
		return err
	}
	store, err := database.NewStoreFromQuerier(versionTable(m.schema), versionQueries{})
	if err != nil {
		return fmt.Errorf("version store: %w", err)
	}
	steps := make([]*goose.Migration, len(m.scripts))
	for i, s := range m.scripts {
		steps[i] = goose.NewGoMigration(s.version, run(s.up), run(s.down))
	}
	m.goose, err = goose.NewProvider(goose.DialectCustom, m.db, nil, goose.WithStore(store),
		goose.WithGoMigrations(steps...), goose.WithDisableGlobalRegistry(true), goose.WithLocker(m.lock))
	if err != nil {
		return fmt.Errorf("set up goose: %w", err)
	}
	return nil
}

// run sends a script as it is, in the transaction that also moves the version.
// Goose's own reader of SQL files would split it at semicolons first, and a
// schema's name may contain one.
func run(script string) *goose.GoFunc {
	return &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, script)
		return err
	}}
}

// Close gives the connections back.
func (m *Migrator) Close() error { return m.db.Close() }

// Up creates the schema if it is missing, applies every pending migration, each
// in a transaction of its own, and returns those it applied, also beside an
// error. Several members may call it at once: one works, the others wait for it
// and find nothing to do.
func (m *Migrator) Up(ctx context.Context) ([]Step, error) {
	if err := m.prepare(ctx); err != nil {
		return nil, err
	}
	results, err := m.goose.Up(ctx)
	if partial, ok := errors.AsType[*goose.PartialError](err); ok {
		results = partial.Applied
	}
	if err != nil {
		return m.steps(results), fmt.Errorf("migrate up: %w", explain(err))
	}
	return m.steps(results), nil
}

// Down undoes the newest migration with all data it holds, and returns it; an
// empty answer says that none was applied. A schema newer than the binary is an
// *OutOfRangeError: only a binary that knows the migration can undo it.
func (m *Migrator) Down(ctx context.Context) ([]Step, error) {
	version, err := m.Version(ctx)
	if err != nil {
		return nil, err
	}
	if _, newest := Range(); version > newest {
		return nil, m.outOfRange(version)
	}
	if version == 0 {
		return nil, nil
	}
	result, err := m.goose.Down(ctx)
	switch {
	case errors.Is(err, goose.ErrNoNextVersion):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("migrate down: %w", explain(err))
	}
	return m.steps([]*goose.MigrationResult{result}), nil
}

func (m *Migrator) steps(results []*goose.MigrationResult) []Step {
	steps := make([]Step, len(results))
	for i, r := range results {
		steps[i] = Step{Version: r.Source.Version, Name: m.name(r.Source.Version), Took: r.Duration}
	}
	return steps
}

func (m *Migrator) name(version int64) string {
	for _, s := range m.scripts {
		if s.version == version {
			return s.name
		}
	}
	return ""
}
