package sink

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
)

func TestForbidControl(t *testing.T) {
	t.Parallel()
	refused := []string{
		"COMMIT", "commit", "CoMmIt;", "ROLLBACK", "abort", "BEGIN", "begin transaction isolation level serializable", "END",
		"START TRANSACTION", "start\ttransaction read only", "SAVEPOINT a", "RELEASE a", "RELEASE SAVEPOINT a", "ROLLBACK TO a",
		"ROLLBACK TO SAVEPOINT a", "COMMIT AND CHAIN", "COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'x'", "END WORK",
		"PREPARE TRANSACTION 'x'", "prepare /* */ -- x\n transaction 'x'",
		" \t\r\n\fCOMMIT", "-- note\nCOMMIT", "--\rCOMMIT", "/* a */COMMIT", "/* a /* b */ c */ COMMIT", "/**/COMMIT/**/",
		";COMMIT", ";;; \n COMMIT", "SELECT 1; COMMIT", "SELECT ';'; COMMIT", "SELECT 'it''s';COMMIT", `SELECT 'a\'; COMMIT --'`,
		`SELECT E'a\'b'; COMMIT`, `SELECT e'\\'; COMMIT`, "SELECT E'a'\n'\\''; COMMIT", "SELECT E'a' -- c\n '\\''; COMMIT",
		`SELECT ";"; COMMIT`, `SELECT "a""b"; COMMIT`, "SELECT $$a$$; COMMIT", "SELECT $a$ $b$ $a$; COMMIT", "SELECT $a$ $a $a$; COMMIT",
		"SELECT $1; COMMIT", "SELECT a$$; COMMIT", "SELECT a$b$; COMMIT", "SELECT 1--1\n;COMMIT", "SELECT 1/*;*/;COMMIT",
		"SELECT U&'\\0041'; COMMIT", "SELECT B'1', X'1F', N'a'; COMMIT", "SELECT x.begin atomic; COMMIT",
		"CREATE TABLE t (); COMMIT", "CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT 1; END; COMMIT",
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; END; COMMIT",
	}
	for _, sql := range refused {
		if err := forbidControl(sql, false); !errors.Is(err, ErrTransactionControl) {
			t.Errorf("%q is let through: %v", sql, err)
		}
	}
	allowed := []string{
		"", " ", ";", "SELECT 1", "SELECT 'COMMIT'", "SELECT '; COMMIT'", "SELECT 'a''; COMMIT'", `SELECT E'\'; COMMIT'`,
		"SELECT E'a'\n'\\'; COMMIT'", `SELECT "; COMMIT"`, `SELECT """; COMMIT"`, "SELECT $$; COMMIT$$", "SELECT $a$; COMMIT $$ ; COMMIT$a$",
		"SELECT 1 -- ; COMMIT", "-- COMMIT", "/* COMMIT */", "/* /* */ COMMIT */", "SELECT /*; COMMIT;*/ 1", "INSERT INTO commit VALUES ($1)",
		`"commit"`, "SELECT committed FROM t", "commits", "_commit", "ÄCOMMIT", "SELECT commit", "UPDATE t SET begin = $1, \"end\" = $2",
		"PREPARE x AS SELECT 1", "WITH x AS (SELECT 1) SELECT * FROM x", "SELECT CASE WHEN a THEN b END FROM t", "'unfinished; COMMIT",
		"/* unfinished; COMMIT", "$a$ unfinished; COMMIT", `"unfinished; COMMIT`, "DO $$ BEGIN PERFORM 1; END $$",
		"CREATE FUNCTION f() RETURNS int BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END", "SET LOCAL x.y = 1",
	}
	for _, sql := range allowed {
		if err := forbidControl(sql, false); err != nil {
			t.Errorf("%q: %v", sql, err)
		}
	}
	if err := forbidControl(`SELECT 'a\'; COMMIT --'`, true); err != nil {
		t.Errorf("with backslash escapes it is one string: %v", err)
	}
	if err := forbidControl(`SELECT 'a\''; COMMIT`, true); !errors.Is(err, ErrTransactionControl) {
		t.Errorf("with backslash escapes the string ends: %v", err)
	}
	if err := forbidControl("SELECT 1\x00; COMMIT", false); err == nil {
		t.Error("U+0000 is let through")
	}
}

// pieces of SQL that are more than one thing to a careless scanner.
var pieces = strings.Split("COMMIT|commit|ROLLBACK|BEGIN|END|ABORT|SAVEPOINT a|; |;|SELECT |1|'|''|E'|e'|\\|\\'|\"|\"\"|$$|$a$|$|$1|a|"+
	"--|/*|*/|\n|\r| |\t|,|U&'|x'|-|*|/|é|a$|ATOMIC|CASE|CREATE FUNCTION f() RETURNS int |'; COMMIT; SELECT '", "|")

func soup(r *rand.Rand) string {
	var b strings.Builder
	for range 1 + r.IntN(14) {
		b.WriteString(pieces[r.IntN(len(pieces))])
	}
	return b.String()
}

// TestControlAgainstServer has the server judge: no text that is let through may
// end or divide the transaction it is sent in, even in the simple protocol, which
// takes several statements at once. Both string syntaxes are tried.
func TestControlAgainstServer(t *testing.T) {
	t.Parallel()
	conn := pgtest.New(t).Conn(t)
	r := rand.New(rand.NewPCG(11, 12))
	passed, refused := 0, 0
	for i := range 6000 {
		standard := i%2 == 0
		sql := soup(r)
		if i%3 == 0 { // complete, so that the server gets past the syntax
			sql = "SELECT 1" + strings.Repeat("/*", r.IntN(2)) + ";" + sql
		}
		if err := forbidControl(sql, !standard); err != nil {
			refused++
			continue
		}
		passed++
		if control := controls(t.Context(), t, conn, sql, standard); control {
			t.Errorf("standard strings %v: %q is let through and controls the transaction", standard, sql)
		}
	}
	if passed < 500 || refused < 500 {
		t.Errorf("%d passed, %d refused: the generator is off", passed, refused)
	}
}

// controls runs sql in a transaction and reports whether another or no
// transaction is open afterwards. A failed one stands.
func controls(ctx context.Context, tb testing.TB, conn *pgx.Conn, sql string, standard bool) bool {
	tb.Helper()
	exec := func(sql string) error { return conn.PgConn().Exec(ctx, sql).Close() }
	setting := map[bool]string{true: "on", false: "off"}[standard]
	if err := exec("BEGIN; SET LOCAL standard_conforming_strings = " + setting + "; SET LOCAL escape_string_warning = off"); err != nil {
		tb.Fatal(err)
	}
	started := xact(ctx, tb, conn)
	_ = exec(sql) // most of it is not SQL
	status := conn.PgConn().TxStatus()
	changed := status == 'I' || status == 'T' && xact(ctx, tb, conn) != started
	if err := exec("ROLLBACK"); err != nil {
		tb.Fatal(err)
	}
	return changed
}

func xact(ctx context.Context, tb testing.TB, conn *pgx.Conn) string {
	tb.Helper()
	results, err := conn.PgConn().Exec(ctx, "SELECT pg_current_xact_id()").ReadAll()
	if err != nil {
		tb.Fatal(err)
	}
	return string(results[0].Rows[0][0])
}

// FuzzControl: the scanner ends on any text, and what stands before a statement
// cannot hide it.
func FuzzControl(f *testing.F) {
	for _, p := range pieces {
		f.Add(p)
	}
	f.Add("SELECT E'a'\n'\\''; COMMIT")
	f.Fuzz(func(t *testing.T, sql string) {
		_ = forbidControl(sql, false)
		_ = forbidControl(sql, true)
		quoted := "SELECT '" + strings.ReplaceAll(strings.ReplaceAll(sql, "\x00", ""), "'", "''") + "'; COMMIT"
		if err := forbidControl(quoted, false); !errors.Is(err, ErrTransactionControl) {
			t.Errorf("%q hides a COMMIT: %v", quoted, err)
		}
		if tag := fmt.Sprintf("$t%d$", len(sql)); !strings.Contains(sql, tag) && !strings.ContainsRune(sql, 0) {
			if err := forbidControl("SELECT "+tag+sql+tag+"; COMMIT", false); !errors.Is(err, ErrTransactionControl) {
				t.Errorf("%q in dollars hides a COMMIT", sql)
			}
		}
	})
}
