package migrations_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtest"
	"effectonce/migrations"
)

// config is the address of the test server as one of its roles.
func config(t *testing.T, dsn string) *pgx.ConnConfig {
	t.Helper()
	c, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// open returns a migrator; the schema is dropped when the test ends.
func open(t *testing.T, db *pgtest.DB, c *pgx.ConnConfig, schema string) *migrations.Migrator {
	t.Helper()
	m, err := migrations.Open(t.Context(), c, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
		drop := "DROP SCHEMA IF EXISTS " + pgx.Identifier{schema}.Sanitize() + " CASCADE"
		if _, err := db.Owner.Exec(context.WithoutCancel(t.Context()), drop); err != nil {
			t.Error(err)
		}
	})
	return m
}

// up migrates and says which versions that were.
func up(t *testing.T, m *migrations.Migrator) []int64 {
	t.Helper()
	steps, err := m.Up(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return versions(steps)
}

func versions(steps []migrations.Step) []int64 {
	var out []int64
	for _, s := range steps {
		out = append(out, s.Version)
	}
	return out
}

// all lists every version this binary knows.
func all() []int64 {
	var out []int64
	_, newest := migrations.Range()
	for v := int64(1); v <= newest; v++ {
		out = append(out, v)
	}
	return out
}

// catalog lists what a schema holds, with its name taken out.
func catalog(t *testing.T, db *pgtest.DB, schema string) []string {
	t.Helper()
	rows, err := db.Owner.Query(t.Context(), `
		WITH ns AS (SELECT oid FROM pg_namespace WHERE nspname = $1)
		SELECT format('%s %s %s', relkind, relname, reloptions) FROM pg_class, ns WHERE relnamespace = ns.oid
		UNION ALL
		SELECT format('column %s.%s %s null %s default %s storage %s identity %s', relname, attname,
			format_type(atttypid, atttypmod), NOT attnotnull, pg_get_expr(adbin, adrelid), attstorage, attidentity)
		FROM ns JOIN pg_class c ON relnamespace = ns.oid JOIN pg_attribute ON attrelid = c.oid
		LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum WHERE attnum > 0 AND relkind <> 'i'
		UNION ALL
		SELECT format('constraint %s %s', conname, pg_get_constraintdef(c.oid)) FROM pg_constraint c, ns WHERE connamespace = ns.oid
		UNION ALL
		SELECT pg_get_indexdef(i.oid) FROM pg_class i, ns WHERE relnamespace = ns.oid AND relkind = 'i'
		UNION ALL
		SELECT pg_get_viewdef(v.oid) FROM pg_class v, ns WHERE relnamespace = ns.oid AND relkind = 'v'
		UNION ALL
		SELECT pg_get_functiondef(p.oid) FROM pg_proc p, ns WHERE pronamespace = ns.oid
		UNION ALL
		SELECT 'type ' || typname FROM pg_type, ns WHERE typnamespace = ns.oid
		ORDER BY 1`, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(strings.ReplaceAll(lines[i], pgx.Identifier{schema}.Sanitize(), "@"), schema, "@")
	}
	return lines
}

func TestUpDownUpLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := db.Schema + "_m"
	m := open(t, db, config(t, db.OwnerDSN), schema)

	if diff := cmp.Diff(all(), up(t, m)); diff != "" {
		t.Error(diff)
	}
	first := catalog(t, db, schema)
	if got := up(t, m); got != nil {
		t.Errorf("a second Up applied %v", got)
	}

	for v := len(all()); v > 0; v-- {
		steps, err := m.Down(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]int64{int64(v)}, versions(steps)); diff != "" {
			t.Error(diff)
		}
	}
	for _, line := range catalog(t, db, schema) {
		if !strings.Contains(line, "goose_db_version") {
			t.Errorf("left behind: %s", line)
		}
	}
	if steps, err := m.Down(t.Context()); err != nil || steps != nil {
		t.Errorf("Down of nothing: %v, %v", steps, err)
	}

	up(t, m)
	if diff := cmp.Diff(first, catalog(t, db, schema)); diff != "" {
		t.Errorf("the second round differs: %s", diff)
	}
}

// Down of a schema that does not exist must not create one.
func TestDownOfNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.OwnerDSN), db.Schema+"_m")
	if steps, err := m.Down(t.Context()); err != nil || steps != nil {
		t.Errorf("%v, %v", steps, err)
	}
	if got := catalog(t, db, db.Schema+"_m"); len(got) > 0 {
		t.Errorf("created %v", got)
	}
}

// Several members start at once with --migrate on an empty database. Each
// migration is applied by one of them; none fails, also not on the catalog's
// unique indexes when two create the schema at the same time.
func TestConcurrentUp(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const members = 4
	schema := db.Schema + "_m"
	for round := range 5 {
		var g errgroup.Group
		applied := make([][]migrations.Step, members)
		start := make(chan struct{})
		for i := range members {
			m := open(t, db, config(t, db.OwnerDSN), schema)
			g.Go(func() (err error) {
				<-start
				applied[i], err = m.Up(t.Context())
				return err
			})
		}
		close(start)
		if err := g.Wait(); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		var total []int64
		for _, steps := range applied {
			total = append(total, versions(steps)...)
		}
		if diff := cmp.Diff(all(), total); diff != "" {
			t.Errorf("round %d: applied more or less than once: %s", round, diff)
		}
		db.Exec(t, "DROP SCHEMA "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
	}
}

// One migrator shared by goroutines takes turns with itself, too.
func TestSharedMigrator(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.OwnerDSN), db.Schema+"_m")
	var g errgroup.Group
	for range 4 {
		g.Go(func() error {
			_, err := m.Up(t.Context())
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := m.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// A name is data: it may hold what ends a quote, a statement, a comment or a
// migration's half.
func TestOddSchemaNames(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tag := strings.TrimPrefix(db.Schema, "eo_test_")
	for _, name := range []string{
		"Upper " + tag, `quo"ted` + tag, `it's` + tag, "user.table" + tag, "straße_日本" + tag, "a;\nb" + tag,
		"x; -- y" + tag, "$1 a$b" + tag, "x\n-- +goose Down\n" + tag, "%s " + tag, "@schema@" + tag,
		strings.Repeat("ü", 20) + strings.Repeat("n", 63-40-len(tag)) + tag,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := open(t, db, config(t, db.OwnerDSN), name)
			up(t, m)
			if err := m.Check(t.Context()); err != nil {
				t.Error(err)
			}
			if err := m.Grant(t.Context(), "effectonce_test_runtime"); err != nil {
				t.Error(err)
			}
			if _, err := db.Runtime.Exec(t.Context(), "SELECT FROM "+pgx.Identifier{name, "positions"}.Sanitize()); err != nil {
				t.Error(err)
			}
			if steps, err := m.Down(t.Context()); err != nil || len(steps) != 1 {
				t.Errorf("down: %v, %v", steps, err)
			}
		})
	}
}

func TestRefusedNames(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, name := range []string{"", strings.Repeat("n", 64), strings.Repeat("ü", 32), "a\x00b", "a\xffb", "a$$b"} {
		if _, err := migrations.Open(t.Context(), config(t, db.OwnerDSN), name); !errors.Is(err, migrations.ErrName) {
			t.Errorf("Open %q: %v", name, err)
		}
		if _, err := migrations.SQL(name, 0); !errors.Is(err, migrations.ErrName) {
			t.Errorf("SQL %q: %v", name, err)
		}
		if _, err := migrations.GrantSQL("s", name); name != "a$$b" && !errors.Is(err, migrations.ErrName) {
			t.Errorf("GrantSQL %q: %v", name, err)
		}
	}
}

// Two installations in one database know nothing of each other.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	one, two := db.Schema+"_1", db.Schema+"_2"
	m1, m2 := open(t, db, config(t, db.OwnerDSN), one), open(t, db, config(t, db.OwnerDSN), two)
	up(t, m1)
	up(t, m2)
	if diff := cmp.Diff(catalog(t, db, one), catalog(t, db, two)); diff != "" {
		t.Error(diff)
	}
	if _, err := m1.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := m2.Check(t.Context()); err != nil {
		t.Errorf("the other schema: %v", err)
	}
}

// The script for DBAs and Up lead to the same place.
func TestSQLIsWhatUpDoes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	byUp, byHand := db.Schema+"_up", db.Schema+"_hand"
	up(t, open(t, db, config(t, db.OwnerDSN), byUp))
	script, err := migrations.SQL(byHand, 0)
	if err != nil {
		t.Fatal(err)
	}
	m := open(t, db, config(t, db.OwnerDSN), byHand)
	db.Exec(t, script)

	if diff := cmp.Diff(catalog(t, db, byUp), catalog(t, db, byHand)); diff != "" {
		t.Error(diff)
	}
	if err := m.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if got := up(t, m); got != nil {
		t.Errorf("Up had something left to do: %v", got)
	}
	if strings.Contains(script, "+goose") || strings.Contains(script, "@schema@") {
		t.Errorf("not plain SQL: %s", script)
	}
	if _, err := db.Owner.Exec(t.Context(), script); err == nil {
		t.Error("the script ran twice")
	}
}

func TestSQLFromNewestIsEmpty(t *testing.T) {
	t.Parallel()
	_, newest := migrations.Range()
	script, err := migrations.SQL("s", newest)
	if diff := cmp.Diff("BEGIN;\nCOMMIT;\n", script); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

// A DBA makes the schema and gives it away; the owner may create nothing else in
// the database.
func TestSchemaMadeByDBA(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	role, schema := db.Schema+"_role", db.Schema+"_m"
	ctx := context.WithoutCancel(t.Context())
	do := func(sql string) {
		t.Helper()
		if _, err := admin.Exec(ctx, strings.NewReplacer("@role@", role, "@schema@", schema).Replace(sql)); err != nil {
			t.Fatal(err)
		}
	}
	do("CREATE ROLE @role@ LOGIN PASSWORD '@role@'; CREATE SCHEMA @schema@ AUTHORIZATION @role@")
	t.Cleanup(func() {
		do("DROP SCHEMA @schema@ CASCADE; DROP ROLE @role@")
		_ = admin.Close(ctx)
	})
	c := config(t, db.OwnerDSN)
	c.User, c.Password = role, role
	m, err := migrations.Open(t.Context(), c, schema)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	if diff := cmp.Diff(all(), up(t, m)); diff != "" {
		t.Error(diff)
	}
	if err := m.Grant(t.Context(), "effectonce_test_runtime"); err != nil {
		t.Error(err)
	}
}

// The session comes with a search path on which every name we use unqualified
// would be somebody else's (CVE-2018-1058): the functions, operators and types
// there end the statement that touches them.
func TestHostileSearchPath(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	evil := db.Schema + "_evil"
	schema := db.Schema + "_m"
	db.Exec(t, hostile(evil))
	t.Cleanup(func() {
		if _, err := db.Owner.Exec(context.WithoutCancel(t.Context()), "DROP SCHEMA "+evil+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	c := config(t, db.OwnerDSN)
	c.RuntimeParams["search_path"] = evil + ", pg_catalog"
	m := open(t, db, c, schema)
	up(t, m)
	if err := m.Grant(t.Context(), "effectonce_test_runtime"); err != nil {
		t.Error(err)
	}
	if err := m.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if list, err := m.Status(t.Context()); err != nil || len(list) != len(all()) {
		t.Error(list, err)
	}
	clean := open(t, db, config(t, db.OwnerDSN), schema+"_clean")
	up(t, clean)
	if diff := cmp.Diff(catalog(t, db, schema+"_clean"), catalog(t, db, schema)); diff != "" {
		t.Error(diff)
	}
	if _, err := m.Down(t.Context()); err != nil {
		t.Error(err)
	}
}

// hostile fills a schema with traps: name and types as the catalog's own.
func hostile(schema string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "CREATE SCHEMA %s; SET LOCAL search_path = %s, pg_catalog;\n", schema, schema)
	b.WriteString(`CREATE FUNCTION trap(bigint, bigint) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION trap(text, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION trap(name, text) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION trap(oid, oid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION trap(uuid, uuid) RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION now() RETURNS timestamptz LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION gen_random_uuid() RETURNS pg_catalog.uuid LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION cardinality(uuid[]) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION octet_length(bytea) RETURNS integer LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION current_setting(text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION max(bigint) RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION pg_current_xact_id() RETURNS xid8 LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE TABLE pg_class (trap text); CREATE TABLE pg_namespace (trap text);
		CREATE DOMAIN text AS pg_catalog.text CHECK (false);
		CREATE DOMAIN int4 AS pg_catalog.int4 CHECK (false);
		CREATE DOMAIN timestamptz AS pg_catalog.timestamptz CHECK (false);
		CREATE DOMAIN bytea AS pg_catalog.bytea CHECK (false);
		CREATE DOMAIN uuid AS pg_catalog.uuid CHECK (false);
		`)
	for _, operator := range []string{"=", ">", "<>", "<", ">="} {
		for _, types := range [][2]string{{"bigint", "bigint"}, {"pg_catalog.text", "pg_catalog.text"}, {"name", "pg_catalog.text"},
			{"oid", "oid"}, {"pg_catalog.uuid", "pg_catalog.uuid"}} {
			fmt.Fprintf(&b, "CREATE OPERATOR %s (LEFTARG = %s, RIGHTARG = %s, FUNCTION = trap);\n", operator, types[0], types[1])
		}
	}
	return b.String()
}
