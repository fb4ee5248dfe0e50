package pgtx_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// inForce are the settings of the session as it is.
const inForce = `SELECT current_setting('search_path'), current_setting('lock_timeout'), current_setting('statement_timeout'),
	current_setting('idle_in_transaction_session_timeout'), current_setting('TimeZone'), current_setting('jit'),
	current_setting('plan_cache_mode'), current_setting('transaction_isolation'), current_setting('transaction_read_only')`

func settings(into *[]string) pgtx.Statement {
	return pgtx.Statement{SQL: inForce, Row: func(r pgtx.Row) error {
		var s [9]string
		err := r.Scan(&s[0], &s[1], &s[2], &s[3], &s[4], &s[5], &s[6], &s[7], &s[8])
		*into = s[:]
		return err
	}}
}

// TestSettings: a session with hostile settings has ours inside a transaction, from
// its first statement on, and its own again behind it.
func TestSettings(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := w.conn.Exec(t.Context(), `SET search_path = public, pg_catalog; SET lock_timeout = '1h'; SET statement_timeout = '2h';
		SET idle_in_transaction_session_timeout = '3h'; SET TimeZone = 'Asia/Kathmandu'; SET jit = on;
		SET plan_cache_mode = force_custom_plan; SET default_transaction_isolation = 'serializable';
		SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	set := pgtx.Settings{Lock: 1500 * time.Millisecond, Statement: 20 * time.Second, Idle: 5 * time.Second}
	ours := []string{"", "1500ms", "20s", "5s", "UTC", "off", "force_generic_plan", "read committed", "off"}
	theirs := []string{"public, pg_catalog", "1h", "2h", "3h", "Asia/Kathmandu", "on", "force_custom_plan", "serializable", "on"}
	var first, second, got []string
	tx, err := pgtx.Begin(t.Context(), w.conn, set, settings(&first))
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Run(t.Context(), settings(&second)); err != nil {
		t.Fatal(err)
	}
	tx.Rollback(t.Context())
	after := func() []string {
		var s [9]string
		if err := w.conn.QueryRow(t.Context(), inForce).Scan(&s[0], &s[1], &s[2], &s[3], &s[4], &s[5], &s[6], &s[7], &s[8]); err != nil {
			t.Fatal(err)
		}
		return s[:]
	}
	afterRollback := after()
	if err := pgtx.Once(t.Context(), w.conn, set, settings(&got)); err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string][][]string{
		"first": {ours, first}, "second": {ours, second}, "once": {ours, got},
		"after ROLLBACK": {theirs, afterRollback}, "after COMMIT": {theirs, after()},
	} {
		if diff := cmp.Diff(s[0], s[1]); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// TestTimeouts really end what they bound, also for a statement of the first round
// trip, which is sent together with the settings.
func TestTimeouts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sleep := pgtx.Statement{Step: pgtx.StepEffect, SQL: "SELECT pg_catalog.pg_sleep(60)"}
	quick := patient
	quick.Statement = 30 * time.Millisecond
	if _, err := pgtx.Begin(t.Context(), w.conn, quick, sleep); pgtx.Code(err) != "57014" || stepOf(err) != pgtx.StepEffect {
		t.Errorf("statement: %v", err)
	}
	w.idle()
	other, err := pgtx.Begin(t.Context(), w.Conn(t), patient, w.insert(1))
	if err != nil {
		t.Fatal(err)
	}
	quick = patient
	quick.Lock = 30 * time.Millisecond
	if err := pgtx.Once(t.Context(), w.conn, quick, w.insert(1)); pgtx.Code(err) != "55P03" {
		t.Errorf("lock: %v", err)
	}
	w.idle()
	other.Rollback(t.Context())
	quick = patient
	quick.Idle = 10 * time.Millisecond
	pid := w.conn.PgConn().PID()
	tx, err := pgtx.Begin(t.Context(), w.conn, quick, w.insert(1))
	if err != nil {
		t.Fatal(err)
	}
	w.gone(pid)
	if err := tx.Commit(t.Context()); !errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("idle: %v", err)
	}
	w.effects()
}

// TestEncodeErrorSendsNothing: a parameter that does not fit fails before a byte is
// sent, and the transaction and its session are in order afterwards.
func TestEncodeErrorSendsNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	bad := pgtx.Statement{Step: pgtx.StepLog, SQL: "SELECT $1", Params: []pgtx.Param{{OID: pgtype.Int8OID, Value: "no number"}}}
	tx := w.begin(w.insert(1))
	err := tx.Run(t.Context(), w.insert(2), bad)
	if !errors.Is(err, pgtx.ErrEncode) || stepOf(err) != pgtx.StepLog {
		t.Errorf("run: %v", err)
	}
	if s := w.conn.PgConn().TxStatus(); s != 'T' {
		t.Errorf("status %c: something was sent", s)
	}
	err = tx.Commit(t.Context(), w.insert(3), bad)
	if !errors.Is(err, pgtx.ErrEncode) || errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("commit: %v", err)
	}
	w.effects()
	w.idle()
	if err := pgtx.Once(t.Context(), w.conn, patient, w.insert(4), bad); !errors.Is(err, pgtx.ErrEncode) {
		t.Errorf("once: %v", err)
	}
	if _, err := pgtx.Begin(t.Context(), w.conn, patient, bad); !errors.Is(err, pgtx.ErrEncode) {
		t.Errorf("begin: %v", err)
	}
	w.effects()
	w.idle()
}

// TestRollbackWithoutContext: the caller's context is gone, the transaction must
// not stay open all the same.
func TestRollbackWithoutContext(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithCancel(t.Context())
	tx, err := pgtx.Begin(ctx, w.conn, patient, w.insert(1))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	tx.Rollback(ctx)
	w.idle()
	w.effects()
	tx.Rollback(ctx) // once more does no harm
	w.idle()
}

// TestBeginFails: an error of the first round trip leaves nothing open.
func TestBeginFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, err := pgtx.Begin(t.Context(), w.conn, patient, w.insert(1), w.insert(1))
	if pgtx.Code(err) != "23505" || stepOf(err) != pgtx.StepEffect {
		t.Errorf("%v", err)
	}
	w.idle()
	w.effects()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pgtx.Begin(ctx, w.conn, patient, w.insert(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	w.effects()
}

// TestLargeParameters: the pipeline is written while the server already answers;
// neither side may wait for the other to read first.
func TestLargeParameters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	big := bytes.Repeat([]byte("0123456789abcdef"), 4<<20/16)
	var stmts []pgtx.Statement
	total := 0
	for i := range int64(6) {
		body := big[:70_000]
		if i%2 == 1 {
			body = big
		}
		stmts = append(stmts, pgtx.Statement{
			Step: pgtx.StepEffect, SQL: "INSERT INTO " + w.table + " VALUES ($1, $2) RETURNING body",
			Params: []pgtx.Param{pgtx.Int8(i), pgtx.Bytea(body)},
			Row: func(r pgtx.Row) error {
				var back []byte
				err := r.Scan(&back)
				if !bytes.Equal(back, body) {
					t.Errorf("%d: %d bytes came back", i, len(back))
				}
				total += len(back)
				return err
			},
		})
	}
	tx, err := pgtx.Begin(ctx, w.conn, patient, stmts[:3]...)
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx, stmts[3:]...); err != nil {
		t.Fatal(err)
	}
	if want := 3*70_000 + 3*len(big); total != want {
		t.Errorf("%d bytes, want %d", total, want)
	}
	w.effects(0, 1, 2, 3, 4, 5)
}

// TestCopy streams rows, and an error of it is the effect's.
func TestCopy(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	sql := "COPY " + w.table + " (id) FROM STDIN"
	tx := w.begin()
	if n, err := tx.Copy(t.Context(), sql, strings.NewReader("1\n2\n3\n")); err != nil || n != 3 {
		t.Errorf("%d rows, %v", n, err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	tx = w.begin()
	n, err := tx.Copy(t.Context(), sql, strings.NewReader("4\n1\n5\n"))
	if n != 0 || pgtx.Code(err) != "23505" || stepOf(err) != pgtx.StepEffect || !pgtx.Answered(err) {
		t.Errorf("%d rows, %v", n, err)
	}
	tx.Rollback(t.Context())
	w.idle()
	w.effects(1, 2, 3)
}

// TestScanError: an answer that does not fit is an error, of its step.
func TestScanError(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	odd := pgtx.Statement{Step: pgtx.StepLog, SQL: "SELECT 'x' FROM pg_catalog.generate_series(1, 3)", Row: func(r pgtx.Row) error {
		var n int64
		return r.Scan(&n)
	}}
	tx := w.begin(w.insert(1))
	if err := tx.Run(t.Context(), odd, w.insert(2)); err == nil || stepOf(err) != pgtx.StepLog {
		t.Errorf("%v", err)
	}
	tx.Rollback(t.Context())
	w.idle()
	w.effects()
	// COMMIT is behind it in the pipeline and happened, which the caller cannot know.
	if err := pgtx.Once(t.Context(), w.conn, patient, odd, w.insert(3)); !errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("%v", err)
	}
	w.closed()
	w.effects(3)
}

// TestParams: each constructor binds its type, and null where it says so.
func TestParams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := stream.UUID{0xab, 15: 0xcd}
	at := time.Date(2026, 5, 6, 7, 8, 9, 123_456_000, time.UTC)
	for _, c := range []struct {
		param pgtx.Param
		typ   string
		text  string
	}{
		{pgtx.Int8(-1 << 63), "bigint", "-9223372036854775808"},
		{pgtx.Int8s([]int64{1, -2}), "bigint[]", "{1,-2}"},
		{pgtx.Int8s(nil), "bigint[]", "null"},
		{pgtx.Int4(-1 << 31), "integer", "-2147483648"},
		{pgtx.Int4s([]int32{}), "integer[]", "{}"},
		{pgtx.Text("a'b\\ü"), "text", "a'b\\ü"},
		{pgtx.Text(""), "text", ""}, // not null
		{pgtx.Texts([]string{"a", ""}), "text[]", `{a,""}`},
		{pgtx.Bytea([]byte{0, 255}), "bytea", `\x00ff`},
		{pgtx.Bytea([]byte{}), "bytea", `\x`},
		{pgtx.Bytea(nil), "bytea", "null"},
		{pgtx.Byteas([][]byte{{1}, {}, nil}), "bytea[]", `{"\\x01","\\x",NULL}`},
		{pgtx.UUID(id), "uuid", id.String()},
		{pgtx.UUIDs([]stream.UUID{id}), "uuid[]", "{" + id.String() + "}"},
		{pgtx.Bool(true), "boolean", "true"},
		{pgtx.Time(at), "timestamp with time zone", "2026-05-06 07:08:09.123456+00"},
		{pgtx.Times([]time.Time{at, {}}), "timestamp with time zone[]", `{"2026-05-06 07:08:09.123456+00",NULL}`},
		{pgtx.JSON([]byte(`{"a": 1e400}`)), "jsonb", `{"a": 1` + strings.Repeat("0", 400) + `}`},
		{pgtx.Binary(pgtype.Int4OID, []byte{0, 0, 1, 0}), "integer", "256"},
	} {
		var typ, text string
		err := pgtx.Once(t.Context(), w.conn, patient, pgtx.Statement{
			SQL: "SELECT pg_catalog.pg_typeof($1)::text, coalesce($1::text, 'null')", Params: []pgtx.Param{c.param},
			Row: func(r pgtx.Row) error { return r.Scan(&typ, &text) },
		})
		if err != nil || typ != c.typ || text != c.text {
			t.Errorf("%s %q, want %s %q (%v)", typ, text, c.typ, c.text, err)
		}
	}
}
