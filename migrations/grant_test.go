package migrations_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtest"
	"effectonce/migrations"
)

func code(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// rights lists what a role was granted in a schema, by the catalog.
func rights(t *testing.T, db *pgtest.DB, schema, role string) map[string]string {
	t.Helper()
	rows, err := db.Owner.Query(t.Context(), `
		SELECT relname, string_agg(lower(a.privilege_type), ' ' ORDER BY a.privilege_type)
		FROM pg_class, aclexplode(relacl) a, pg_roles r
		WHERE relnamespace = $1::regnamespace AND a.grantee = r.oid AND r.rolname = $2 GROUP BY relname
		UNION ALL
		SELECT 'schema', string_agg(lower(a.privilege_type), ' ' ORDER BY a.privilege_type)
		FROM pg_namespace n, aclexplode(nspacl) a, pg_roles r
		WHERE n.oid = $1::regnamespace AND a.grantee = r.oid AND r.rolname = $2 HAVING count(*) > 0
		UNION ALL
		SELECT proname || '()', string_agg(lower(a.privilege_type), ' ' ORDER BY a.privilege_type)
		FROM pg_proc, aclexplode(proacl) a, pg_roles r
		WHERE pronamespace = $1::regnamespace AND a.grantee = r.oid AND r.rolname = $2 GROUP BY proname
		UNION ALL
		SELECT typname, string_agg(lower(a.privilege_type), ' ' ORDER BY a.privilege_type)
		FROM pg_type, aclexplode(typacl) a, pg_roles r
		WHERE typnamespace = $1::regnamespace AND a.grantee = r.oid AND r.rolname = $2 GROUP BY typname`,
		pgx.Identifier{schema}.Sanitize(), role)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	var name, list string
	if _, err := pgx.ForEachRow(rows, []any{&name, &list}, func() error { got[name] = list; return nil }); err != nil {
		t.Fatal(err)
	}
	return got
}

// The list is written out a second time on purpose: a right more is a change that
// somebody should notice.
func wantRights() map[string]string {
	return map[string]string{
		"schema":           "usage",
		"pipelines":        "insert select update",
		"topics":           "insert select update",
		"positions":        "insert select update",
		"logs":             "insert select update",
		"dead_letters":     "insert select update",
		"gates":            "insert select update",
		"runs":             "delete insert select update",
		"segments":         "delete insert select update",
		"outbox":           "delete insert select update",
		"stops":            "delete insert select update",
		"blocks":           "delete insert select",
		"holds":            "delete insert select",
		"decisions":        "insert select",
		"audit":            "select",
		"goose_db_version": "select",
		"run_range":        "usage",
		"key_part":         "usage",
		"fence()":          "execute",
		"append_runs()":    "execute",
		"takeover()":       "execute",
		"swap_segments()":  "execute",
		// Retention.
		"log_progress()":     "execute",
		"expired_segments()": "execute",
		"expire_segments()":  "execute",
		// Changes of what a commit means.
		"change_generation()": "execute",
		"lock_logs()":         "execute",
		"change_logs()":       "execute",
		// What SQL may ask, one function a type of key.
		"part()":              "execute execute execute execute execute",
		"canonical_number()":  "execute",
		"pipeline_salt()":     "execute",
		"fingerprint()":       "execute execute execute execute execute execute execute",
		"holds_fingerprint()": "execute",
		"in_runs()":           "execute",
		"in_segments()":       "execute",
		"seen_fingerprint()":  "execute",
		"seen()":              "execute execute execute execute execute execute",
	}
}

func TestGrantIsExact(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := db.Schema + "_m"
	m := open(t, db, config(t, db.OwnerDSN), schema)
	up(t, m)
	for round := range 2 {
		if err := m.Grant(t.Context(), "effectonce_test_runtime"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(wantRights(), rights(t, db, schema, "effectonce_test_runtime")); diff != "" {
			t.Errorf("round %d: %s", round, diff)
		}
	}
}

// What the runtime role may not do, said by the server.
func TestRuntimeRoleIsPlain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := pgx.Identifier{db.Schema}.Sanitize()
	for _, sql := range []string{
		"CREATE TABLE @.mine (id int)", "CREATE FUNCTION @.fence() RETURNS int LANGUAGE sql AS 'SELECT 1'",
		"CREATE SCHEMA runtime_was_here", "DROP TABLE @.runs", "DROP SCHEMA @ CASCADE", "TRUNCATE @.runs",
		"ALTER TABLE @.positions DISABLE TRIGGER ALL", "ALTER TABLE @.positions ADD COLUMN mine int",
		"DELETE FROM @.positions", "DELETE FROM @.logs", "DELETE FROM @.pipelines", "DELETE FROM @.topics",
		"DELETE FROM @.dead_letters", "DELETE FROM @.decisions", "UPDATE @.decisions SET reason = ''",
		"UPDATE @.blocks SET first = first", "INSERT INTO @.goose_db_version (version_id, is_applied) VALUES (9, true)",
		"DELETE FROM @.goose_db_version",
		"SET ROLE effectonce_test_owner",
	} {
		_, err := db.Runtime.Exec(t.Context(), strings.ReplaceAll(sql, "@", schema))
		if code(err) != "42501" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// Identity columns fill themselves without a right on their sequence.
func TestRuntimeInsertsIdentities(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newFixture(t, db)
	if _, err := db.Runtime.Exec(t.Context(), "INSERT INTO "+db.Relation("decisions")+
		" (pipeline, kind) VALUES ($1, 'test')", f.pipeline); err != nil {
		t.Error(err)
	}
}

func TestGrantToOddRole(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	admin, err := pgx.Connect(t.Context(), pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	role := `O'Brien "; x` + db.Schema
	t.Cleanup(func() {
		quoted := pgx.Identifier{role}.Sanitize()
		if _, err := admin.Exec(ctx, "DROP OWNED BY "+quoted+"; DROP ROLE "+quoted); err != nil {
			t.Error(err)
		}
		_ = admin.Close(ctx)
	})
	if _, err := admin.Exec(ctx, "CREATE ROLE "+pgx.Identifier{role}.Sanitize()); err != nil {
		t.Fatal(err)
	}
	m := open(t, db, config(t, db.OwnerDSN), db.Schema)
	if err := m.Grant(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wantRights(), rights(t, db, db.Schema, role)); diff != "" {
		t.Error(diff)
	}
	if err := m.Grant(t.Context(), "public"); !errors.Is(err, migrations.ErrName) {
		t.Errorf("to everybody: %v", err)
	}
	if err := m.Grant(t.Context(), "nobody "+db.Schema); code(err) != "42704" {
		t.Errorf("to nobody: %v", err)
	}
}

func TestGrantWithoutTables(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	m := open(t, db, config(t, db.OwnerDSN), db.Schema+"_missing")
	if _, ok := errors.AsType[*migrations.OutOfRangeError](m.Grant(t.Context(), "effectonce_test_runtime")); !ok {
		t.Error("the answer does not say to migrate first")
	}
}
