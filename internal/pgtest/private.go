package pgtest

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/proctest"
)

// Private is a Postgres server of a test's own, durable as a real one. It ends with
// the test that started it.
type Private struct {
	life    testing.TB
	account *syscall.Credential
	dir     string
	port    int
	ended   <-chan struct{}
}

// StartPrivate makes a cluster and starts its server. NewOn makes a place in it.
func StartPrivate(tb testing.TB) *Private {
	tb.Helper()
	p := private(tb)
	p.run(tb, "initdb", "--no-sync", "-D", p.data(), "-U", "postgres", "-E", "UTF8", "-A", "trust")
	p.Start(tb)
	return p
}

func private(tb testing.TB) *Private {
	tb.Helper()
	p := &Private{life: tb, account: proctest.Unprivileged(tb), port: proctest.Ports(tb, 1)[0]}
	p.dir = proctest.Dir(tb, p.account)
	return p
}

// Replica starts a streaming replica of the server, asynchronous, with what is there.
func (p *Private) Replica(tb testing.TB) *Private {
	tb.Helper()
	r := private(tb)
	r.run(tb, "pg_basebackup", "-d", p.DSN(), "-D", r.data(), "-R", "-c", "fast", "--no-sync")
	r.Start(tb)
	return r
}

// HoldBack has a replica get nothing any more: what its primary commits from now on is
// lost when the replica is promoted.
func (p *Private) HoldBack(tb testing.TB) {
	tb.Helper()
	p.Exec(tb, "ALTER SYSTEM SET primary_conninfo = ''")
	p.Exec(tb, "SELECT pg_reload_conf()")
	p.Await(tb, "the replica to stand still", "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)")
}

// Promote makes a replica the primary of a new timeline.
func (p *Private) Promote(tb testing.TB) {
	tb.Helper()
	p.Exec(tb, "SELECT pg_promote()")
	p.Await(tb, "the replica to be a primary", "SELECT NOT pg_is_in_recovery()")
}

// Addr is the server's host:port.
func (p *Private) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// DSN is the server's address as its administrator.
func (p *Private) DSN() string {
	return "postgres://postgres@" + p.Addr() + "/postgres?sslmode=disable"
}

// EitherDSN is the address of whichever of the two takes writes.
func (p *Private) EitherDSN(other *Private) string {
	return "postgres://postgres@" + p.Addr() + "," + other.Addr() + "/postgres?sslmode=disable&target_session_attrs=read-write"
}

func (p *Private) data() string { return filepath.Join(p.dir, "data") }

// Exec runs a statement as the administrator.
func (p *Private) Exec(tb testing.TB, sql string) {
	tb.Helper()
	if err := p.ask(tb, func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	}); err != nil {
		tb.Fatalf("%s: %v", sql, err)
	}
}

// Await returns when the query answers true.
func (p *Private) Await(tb testing.TB, what, sql string) {
	tb.Helper()
	await(tb, what, func() error {
		var done bool
		err := p.ask(tb, func(ctx context.Context, conn *pgx.Conn) error { return conn.QueryRow(ctx, sql).Scan(&done) })
		if err == nil && !done {
			err = errNotYet
		}
		return err
	})
}

func (p *Private) ask(tb testing.TB, f func(context.Context, *pgx.Conn) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
	defer cancel()
	conn, err := pgx.Connect(ctx, p.DSN())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }() // nothing is left to lose
	return f(ctx, conn)
}

// Start returns when the server lets its administrator in.
func (p *Private) Start(tb testing.TB) {
	tb.Helper()
	log := filepath.Join(p.life.TempDir(), "postgres.log")
	p.ended = proctest.Start(p.life, proctest.Server{
		Args: []string{
			program(tb, "postgres"), "-D", p.data(), "-c", "port=" + strconv.Itoa(p.port), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=",
		},
		Log: log, Signal: "INT", Account: p.account,
	})
	answering(tb, "the private Postgres", log, p.ended, func() error {
		return p.ask(tb, func(context.Context, *pgx.Conn) error { return nil })
	})
}

// Crash is an immediate shutdown: no checkpoint, no farewell; the next start recovers.
func (p *Private) Crash(tb testing.TB) { p.end(tb, syscall.SIGQUIT) }

// Kill is kill -9. Its backends end when they notice.
func (p *Private) Kill(tb testing.TB) { p.end(tb, syscall.SIGKILL) }

func (p *Private) end(tb testing.TB, s syscall.Signal) {
	tb.Helper()
	if err := syscall.Kill(pidIn(tb, filepath.Join(p.data(), "postmaster.pid")), s); err != nil {
		tb.Fatalf("end the private Postgres: %v", err)
	}
	<-p.ended
}

// run runs one of Postgres's programs to its end.
func (p *Private) run(tb testing.TB, name string, args ...string) {
	tb.Helper()
	cmd := exec.CommandContext(tb.Context(), program(tb, name), args...)
	cmd.SysProcAttr, cmd.Dir = &syscall.SysProcAttr{Credential: p.account}, p.dir
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%s: %v\n%s", name, err, out)
	}
}

// program is the path of one of Postgres's programs.
func program(tb testing.TB, name string) string {
	tb.Helper()
	if dir := os.Getenv("EFFECTONCE_TEST_POSTGRES_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		tb.Fatal("no PostgreSQL server here: set EFFECTONCE_TEST_POSTGRES_BIN to the directory of initdb")
	}
	return found[len(found)-1]
}

// pidIn reads the first line of a pid file.
func pidIn(tb testing.TB, path string) int {
	tb.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		tb.Fatalf("%s: %v", path, err)
	}
	return pid
}

// answering returns when a server that was started answers.
func answering(tb testing.TB, what, log string, ended <-chan struct{}, ask func() error) {
	tb.Helper()
	await(tb, what, func() error {
		select {
		case <-ended:
			text, _ := os.ReadFile(log) // what there is of it
			tb.Fatalf("%s ended:\n%s", what, text)
		default:
		}
		return ask()
	})
}

var errNotYet = errors.New("not yet")

// await asks again and again for something that nothing announces.
func await(tb testing.TB, what string, ask func() error) {
	tb.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(2 * patience)
	for err := ask(); err != nil; err = ask() {
		select {
		case <-again.C:
		case <-deadline:
			tb.Fatalf("waited in vain for %s: %v", what, err)
		}
	}
}
