package pgproxytest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is one table, reached directly and through a proxy.
type bench struct {
	table  string // quoted and qualified
	owner  *pgxpool.Pool
	config *pgx.ConnConfig
	proxy  *pgproxytest.Proxy
}

func newBench(t *testing.T) *bench {
	t.Helper()
	db := pgtest.New(t)
	config, err := pgx.ParseConfig(db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	upstream := net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
	return &bench{db.Table(t, "effects", "id int"), db.Owner, config, pgproxytest.Start(t, upstream)}
}

func dial(t *testing.T, config *pgx.ConnConfig) *pgx.Conn {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return conn
}

// through connects to the server by way of the proxy.
func (b *bench) through(t *testing.T) *pgx.Conn {
	t.Helper()
	host, port, err := net.SplitHostPort(b.proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	config := b.config.Copy()
	config.Host, config.Port, config.Fallbacks = host, uint16(n), nil
	config.RuntimeParams["application_name"] = "through"
	return dial(t, config)
}

// identifier is the table's name as CopyFrom wants it.
func (b *bench) identifier() pgx.Identifier {
	return strings.Split(strings.ReplaceAll(b.table, `"`, ""), ".")
}

// insert is a pipelined statement that writes one row.
func (b *bench) insert(id int32) pgtx.Statement {
	return pgtx.Statement{Step: pgtx.StepEffect, SQL: "INSERT INTO " + b.table + " VALUES ($1)", Params: []pgtx.Param{pgtx.Int4(id)}}
}

// rows counts what is committed. It waits for open writers: a cut session may
// still be ending.
func (b *bench) rows(t *testing.T) int {
	t.Helper()
	tx, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }()
	var n int
	if _, err := tx.Exec(t.Context(), "LOCK TABLE "+b.table+" IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	if err := tx.QueryRow(t.Context(), "SELECT count(*) FROM "+b.table).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// fired waits for the fault.
func (b *bench) fired(t *testing.T, want pgproxytest.Fault) {
	t.Helper()
	select {
	case e := <-b.proxy.Fired():
		if e != (pgproxytest.Event{Fault: want, Application: "through"}) {
			t.Fatalf("fired %+v, want fault %d of through", e, want)
		}
	case <-time.After(10 * time.Second):
		t.Fatalf("fault %d did not fire", want)
	}
}

func (b *bench) notFired(t *testing.T) {
	t.Helper()
	select {
	case e := <-b.proxy.Fired():
		t.Fatalf("fired %+v, want nothing", e)
	default:
	}
}

// commitPipelined commits as the program does: statements and COMMIT, unnamed,
// in one pipeline.
func commitPipelined(ctx context.Context, b *bench, conn *pgx.Conn, id int32) error {
	tx, err := pgtx.Begin(ctx, conn, pgtx.DefaultSettings)
	if err != nil {
		return err
	}
	return tx.Commit(ctx, b.insert(id))
}

// commitSimple commits by simple queries.
func commitSimple(ctx context.Context, b *bench, conn *pgx.Conn, id int32) error {
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, fmt.Sprintf("INSERT INTO %s VALUES (%d)", b.table, id)); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

type commit = func(context.Context, *bench, *pgx.Conn, int32) error

func forms() map[string]commit {
	return map[string]commit{"pipelined": commitPipelined, "simple": commitSimple}
}

func TestPassesEverythingOn(t *testing.T) {
	for name, commit := range forms() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			conn := b.through(t)
			for i := range int32(3) {
				if err := commit(t.Context(), b, conn, i); err != nil {
					t.Fatal(err)
				}
			}
			source := pgx.CopyFromSlice(100_000, func(i int) ([]any, error) { return []any{int32(i)}, nil })
			if _, err := conn.CopyFrom(t.Context(), b.identifier(), []string{"id"}, source); err != nil {
				t.Fatal(err)
			}
			if got := b.rows(t); got != 100_003 {
				t.Errorf("%d rows, want 100003", got)
			}
			var large int
			if err := conn.QueryRow(t.Context(), "SELECT length($1)", strings.Repeat("x", 1<<20)).Scan(&large); err != nil || large != 1<<20 {
				t.Errorf("length = %d, %v", large, err)
			}
			b.notFired(t)
		})
	}
}

func TestCutBeforeCommit(t *testing.T) {
	for name, commit := range forms() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			conn := b.through(t)
			b.proxy.Arm(pgproxytest.CutBeforeCommit, pgproxytest.Filter{})
			err := commit(t.Context(), b, conn, 1)
			if err == nil {
				t.Error("COMMIT was answered")
			}
			if name == "pipelined" && !errors.Is(err, pgtx.ErrCommitUnknown) {
				t.Errorf("error is %v, want ErrCommitUnknown", err)
			}
			b.fired(t, pgproxytest.CutBeforeCommit)
			if got := b.rows(t); got != 0 {
				t.Errorf("%d rows committed, want 0", got)
			}
			if err := commit(t.Context(), b, b.through(t), 2); err != nil {
				t.Errorf("the fault hit twice: %v", err)
			}
		})
	}
}

func TestCutAfterCommit(t *testing.T) {
	for name, commit := range forms() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			conn := b.through(t)
			b.proxy.Arm(pgproxytest.CutAfterCommit, pgproxytest.Filter{})
			err := commit(t.Context(), b, conn, 1)
			if err == nil {
				t.Error("COMMIT was answered")
			}
			if name == "pipelined" && !errors.Is(err, pgtx.ErrCommitUnknown) {
				t.Errorf("error is %v, want ErrCommitUnknown", err)
			}
			b.fired(t, pgproxytest.CutAfterCommit)
			if got := b.rows(t); got != 1 {
				t.Errorf("%d rows committed, want 1", got)
			}
			if err := commit(t.Context(), b, b.through(t), 2); err != nil {
				t.Errorf("the fault hit twice: %v", err)
			}
		})
	}
}

func TestHoldReply(t *testing.T) {
	for name, commit := range forms() {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			conn := b.through(t)
			b.proxy.Arm(pgproxytest.HoldReply, pgproxytest.Filter{})
			answer := make(chan error, 1)
			go func() { answer <- commit(t.Context(), b, conn, 1) }()
			b.fired(t, pgproxytest.HoldReply)
			if got := b.rows(t); got != 1 {
				t.Errorf("%d rows committed, want 1", got)
			}
			select {
			case err := <-answer:
				t.Fatalf("answered before Release: %v", err)
			default:
			}
			b.proxy.Release()
			if err := <-answer; err != nil {
				t.Errorf("held COMMIT: %v", err)
			}
			if err := commit(t.Context(), b, conn, 2); err != nil {
				t.Errorf("the session after a held COMMIT: %v", err)
			}
		})
	}
}

// A client that stops waiting for a held answer leaves nothing behind.
func TestHoldReplyGivenUp(t *testing.T) {
	b := newBench(t)
	conn := b.through(t)
	b.proxy.Arm(pgproxytest.HoldReply, pgproxytest.Filter{})
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() { answer <- commitPipelined(ctx, b, conn, 1) }()
	b.fired(t, pgproxytest.HoldReply)
	cancel()
	if err := <-answer; !errors.Is(err, pgtx.ErrCommitUnknown) {
		t.Errorf("error is %v, want ErrCommitUnknown", err)
	}
	if got := b.rows(t); got != 1 {
		t.Errorf("%d rows committed, want 1", got)
	}
}

func TestFilter(t *testing.T) {
	b := newBench(t)
	conn := b.through(t)
	b.proxy.Arm(pgproxytest.CutAfterCommit, pgproxytest.Filter{SQL: "INSERT INTO " + b.table, Nth: 2})
	other := pgtx.Statement{Step: pgtx.StepFence, SQL: "SELECT 1"}
	for _, step := range []struct {
		statement pgtx.Statement
		hit       bool
	}{{other, false}, {b.insert(1), false}, {other, false}, {b.insert(2), true}} {
		err := pgtx.Once(t.Context(), conn, pgtx.DefaultSettings, step.statement)
		if hit := errors.Is(err, pgtx.ErrCommitUnknown); hit != step.hit || (err != nil && !hit) {
			t.Fatalf("%s: error is %v, want a hit: %v", step.statement.SQL, err, step.hit)
		}
	}
	b.fired(t, pgproxytest.CutAfterCommit)
	if got := b.rows(t); got != 2 {
		t.Errorf("%d rows committed, want 2", got)
	}
}

// A COMMIT behind a guard that raised was never carried out: the fault waits.
func TestRefusedCommitIsNoHit(t *testing.T) {
	for _, fault := range []pgproxytest.Fault{pgproxytest.CutAfterCommit, pgproxytest.HoldReply} {
		b := newBench(t)
		conn := b.through(t)
		b.proxy.Arm(fault, pgproxytest.Filter{SQL: "INSERT"})
		guard := pgtx.Statement{Step: pgtx.StepFence, SQL: "SELECT 1/0"}
		err := pgtx.Once(t.Context(), conn, pgtx.DefaultSettings, b.insert(1), guard)
		if pgtx.Code(err) != "22012" {
			t.Fatalf("error is %v, want a division by zero", err)
		}
		b.notFired(t)
		answer := make(chan error, 1)
		go func() { answer <- commitPipelined(t.Context(), b, conn, 2) }()
		b.fired(t, fault)
		b.proxy.Release()
		if err := <-answer; (err == nil) != (fault == pgproxytest.HoldReply) {
			t.Errorf("fault %d: COMMIT ended with %v", fault, err)
		}
		if got := b.rows(t); got != 1 {
			t.Errorf("%d rows committed, want 1", got)
		}
	}
}

func TestDisarm(t *testing.T) {
	b := newBench(t)
	b.proxy.Arm(pgproxytest.CutBeforeCommit, pgproxytest.Filter{})
	b.proxy.Disarm()
	if err := commitPipelined(t.Context(), b, b.through(t), 1); err != nil {
		t.Fatal(err)
	}
}

// A cancel request reaches the server on a connection of its own.
func TestCancelRequest(t *testing.T) {
	b := newBench(t)
	holder, err := b.owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }() // releases the lock
	if _, err := holder.Exec(t.Context(), "LOCK TABLE "+b.table); err != nil {
		t.Fatal(err)
	}
	conn := b.through(t)
	answer := make(chan error, 1)
	go func() { answer <- commitSimple(t.Context(), b, conn, 1) }()
	awaitBlocked(t, b, conn.PgConn().PID())
	if err := conn.PgConn().CancelRequest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; pgtx.Code(err) != "57014" {
		t.Errorf("error is %v, want 57014", err)
	}
}

// awaitBlocked returns when the backend waits for a lock.
func awaitBlocked(t *testing.T, b *bench, pid uint32) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for blocked := false; !blocked; {
		err := b.owner.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", int64(pid)).Scan(&blocked)
		if err != nil {
			t.Fatalf("wait for the lock: %v", err)
		}
	}
}

func (b *bench) url(sslmode string) string {
	return fmt.Sprintf("postgres://%s:%s@%s/%s?sslmode=%s", b.config.User, b.config.Password, b.proxy.Addr(), b.config.Database, sslmode)
}

// A server without TLS answers N to a request for it, and so does the proxy.
func TestTLSIsRefused(t *testing.T) {
	b := newBench(t)
	config, err := pgx.ParseConfig(b.url("require"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.ConnectConfig(t.Context(), config); err == nil {
		t.Error("connected with TLS")
	}
	prefer, err := pgx.ParseConfig(b.url("prefer"))
	if err != nil {
		t.Fatal(err)
	}
	conn := dial(t, prefer)
	if err := commitSimple(t.Context(), b, conn, 1); err != nil {
		t.Error(err)
	}
}
