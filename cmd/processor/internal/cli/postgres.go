package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/migrations"
	"effectonce/pkg/sink"
)

// checkPostgres asks the database whether it answers, is new enough, has our
// schema, and takes what the sink would write.
func checkPostgres(ctx context.Context, l *config.Loaded, r *report) {
	c := l.Config.Postgres
	pool, err := connect.Postgres(c, l.Config.Pipeline)
	if err != nil {
		r.fail("postgres", exit.Config, err)
		return
	}
	if err := connect.CheckPostgres(ctx, pool); err != nil {
		r.fail("postgres", postgresCode(err), err)
		return
	}
	conn, err := pgx.ConnectConfig(ctx, pool.ConnConfig)
	if err != nil {
		r.fail("postgres", postgresCode(err), err)
		return
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing depends on the goodbye
	if err := checkServer(ctx, conn, r); err != nil {
		r.fail("postgres", postgresCode(err), err)
		return
	}
	checkSchema(ctx, pool.ConnConfig, c.Schema, r)
	checkRole(ctx, conn, c.Schema, r)
	checkTable(ctx, conn, l.Config.Sink.Table, r)
}

// postgresCode tells a refused login or a database that does not exist, which
// must be changed, from silence, and both from a refused statement.
func postgresCode(err error) int {
	var pg *pgconn.PgError
	var dial *pgconn.ConnectError
	switch {
	case errors.Is(err, migrations.ErrServerTooOld), errors.Is(err, connect.ErrTooOld):
		return exit.Refused
	case errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "28") || pg.Code == "3D000"):
		return exit.Config
	case errors.As(err, &dial), errors.Is(err, context.DeadlineExceeded), pg == nil:
		return exit.Unavailable
	case strings.HasPrefix(pg.Code, "08"), strings.HasPrefix(pg.Code, "53"), strings.HasPrefix(pg.Code, "57"):
		return exit.Unavailable
	}
	return exit.Refused
}

// checkServer warns of a server that could lose what it confirmed.
func checkServer(ctx context.Context, conn *pgx.Conn, r *report) error {
	var version, commit, fsync string
	var standby bool
	err := conn.QueryRow(ctx, `SELECT current_setting('server_version'), pg_is_in_recovery(), current_setting('synchronous_commit'), current_setting('fsync')`).
		Scan(&version, &standby, &commit, &fsync)
	if err != nil {
		return fmt.Errorf("ask for the version: %w", err)
	}
	r.fine("postgres", "%s answers, Postgres %s", conn.Config().Host, version)
	if standby {
		r.fail("postgres", exit.Refused, errors.New("the server is a standby: it takes no writes"))
	}
	if commit == "off" || fsync == "off" {
		r.warn("postgres", "synchronous_commit or fsync is off: after a crash the database may go back; what it lost is applied again")
	}
	return nil
}

// checkSchema compares the version of our tables with what this binary knows.
func checkSchema(ctx context.Context, c *pgx.ConnConfig, schema string, r *report) {
	m, err := migrations.Open(ctx, c, schema)
	if err != nil {
		r.fail("postgres.schema", postgresCode(err), err)
		return
	}
	defer func() { _ = m.Close() }() // only reads were made
	if err := m.Check(ctx); err != nil {
		r.fail("postgres.schema", schemaCode(err), err)
		return
	}
	version, err := m.Version(ctx)
	if err != nil {
		r.fail("postgres.schema", postgresCode(err), err)
		return
	}
	r.fine("postgres.schema", "schema %s is at version %d", schema, version)
}

func schemaCode(err error) int {
	if _, outside := errors.AsType[*migrations.OutOfRangeError](err); outside {
		return exit.Refused
	}
	return postgresCode(err)
}

// checkRole warns of rights that the running program has no use for, and names
// those it lacks on our tables.
func checkRole(ctx context.Context, conn *pgx.Conn, schema string, r *report) {
	var role string
	var super, bypass, create, usage bool
	err := conn.QueryRow(ctx, `SELECT r.rolname, r.rolsuper, r.rolbypassrls,
			has_database_privilege(current_database(), 'CREATE') OR coalesce(has_schema_privilege(n.oid, 'CREATE'), false),
			coalesce(has_schema_privilege(n.oid, 'USAGE'), true)
		FROM pg_roles r LEFT JOIN pg_namespace n ON n.nspname = $1 WHERE r.rolname = current_user`, schema).
		Scan(&role, &super, &bypass, &create, &usage)
	switch {
	case err != nil:
		r.fail("postgres", postgresCode(err), fmt.Errorf("ask for the role's rights: %w", err))
	case super:
		r.warn("postgres", "role "+role+" is a superuser: run with a role that has only what migrate up --runtime-role grants")
	case bypass:
		r.warn("postgres", "role "+role+" bypasses row security")
	case create:
		r.warn("postgres", "role "+role+" may create tables and schemas: run with a role that has only what migrate up --runtime-role grants")
	case !usage:
		r.fail("postgres.schema", exit.Refused, fmt.Errorf("role %s may not use schema %s: run processor migrate up --runtime-role %s as its owner", role, schema, role))
	}
}

// checkTable opens the sink the way run does.
func checkTable(ctx context.Context, conn *pgx.Conn, t config.Table, r *report) {
	const about = "sink.table"
	c := sink.TableConfig{Schema: t.Schema, Name: t.Name, Mode: sink.Mode(t.Mode), Conflict: t.Conflict}
	for i, column := range slices.Sorted(maps.Keys(t.Columns)) {
		c.Columns = append(c.Columns, sink.Column{Name: column, Source: i, SourceName: t.Columns[column]})
	}
	table, err := sink.OpenTable(ctx, conn, c)
	switch {
	case errors.Is(err, sink.ErrTable):
		for _, fault := range faults(err) {
			r.fail(about, exit.Refused, fault)
		}
		return
	case err != nil:
		r.fail(about, postgresCode(err), err)
		return
	}
	r.fine(about, "%s takes %d columns", strings.Join(table.Tables(), ", "), len(c.Columns))
	for _, w := range table.Warnings(nil) {
		r.warn(about, w)
	}
}

// faults takes apart what OpenTable joined under ErrTable.
func faults(err error) []error {
	type many interface{ Unwrap() []error }
	outer, ok := err.(many)
	if !ok || len(outer.Unwrap()) != 2 {
		return []error{err}
	}
	inner, ok := outer.Unwrap()[1].(many)
	if !ok || !strings.HasSuffix(err.Error(), outer.Unwrap()[1].Error()) {
		return []error{err}
	}
	return inner.Unwrap()
}
