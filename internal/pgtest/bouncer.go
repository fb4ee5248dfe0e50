package pgtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/proctest"
)

// Bouncer is a PgBouncer in transaction mode: each transaction of a client may run in
// another session of the server. It ends with the test.
type Bouncer struct {
	life    testing.TB
	account *syscall.Credential
	dir     string
	port    int
	ended   <-chan struct{}
}

// StartBouncer starts PgBouncer in front of the server at host:port with this many
// sessions a user and database. settings are further lines of its configuration.
func StartBouncer(tb testing.TB, upstream string, pool int, settings ...string) *Bouncer {
	tb.Helper()
	b := &Bouncer{life: tb, account: proctest.Unprivileged(tb), port: proctest.Ports(tb, 1)[0]}
	b.dir = proctest.Dir(tb, b.account)
	host, port, err := net.SplitHostPort(upstream)
	if err != nil {
		tb.Fatal(err)
	}
	lines := append([]string{
		"[databases]", fmt.Sprintf("* = host=%s port=%s", host, port), "[pgbouncer]", "pool_mode = transaction",
		"default_pool_size = " + strconv.Itoa(pool), "server_round_robin = 1", "listen_addr = 127.0.0.1", "listen_port = " + strconv.Itoa(b.port),
		"unix_socket_dir =", "auth_type = trust", "auth_file = " + b.path("users"), "pidfile = " + b.path("pid"),
	}, settings...)
	b.write(tb, "bouncer.ini", strings.Join(lines, "\n")+"\n")
	b.write(tb, "users", fmt.Sprintf("%[1]q %[1]q\n%[2]q %[2]q\n", ownerRole, runtimeRole))
	b.Start(tb)
	return b
}

// BouncerPrepares reports whether this PgBouncer follows prepared statements (from 1.21
// on), when max_prepared_statements says so.
func BouncerPrepares(tb testing.TB) bool {
	tb.Helper()
	out, err := exec.CommandContext(tb.Context(), bouncer(tb), "--version").Output()
	if err != nil {
		tb.Fatalf("pgbouncer --version: %v", err)
	}
	found := regexp.MustCompile(`PgBouncer (\d+)\.(\d+)`).FindSubmatch(out)
	if found == nil {
		tb.Fatalf("pgbouncer --version says %q", out)
	}
	major, _ := strconv.Atoi(string(found[1])) // digits
	minor, _ := strconv.Atoi(string(found[2])) // digits
	return major > 1 || minor >= 21
}

// Addr is its host:port.
func (b *Bouncer) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(b.port)) }

// Start returns when it answers.
func (b *Bouncer) Start(tb testing.TB) {
	tb.Helper()
	log := filepath.Join(b.life.TempDir(), "pgbouncer.log")
	b.ended = proctest.Start(b.life, proctest.Server{
		Args: []string{bouncer(tb), b.path("bouncer.ini")}, Log: log, Signal: "KILL", Account: b.account,
	})
	answering(tb, "PgBouncer", log, b.ended, func() error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), patience)
		defer cancel()
		conn, err := pgx.Connect(ctx, fmt.Sprintf("postgres://%[1]s:%[1]s@%[2]s/postgres?sslmode=disable", runtimeRole, b.Addr()))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

// Kill is kill -9.
func (b *Bouncer) Kill(tb testing.TB) {
	tb.Helper()
	if err := syscall.Kill(pidIn(tb, b.path("pid")), syscall.SIGKILL); err != nil {
		tb.Fatalf("end PgBouncer: %v", err)
	}
	<-b.ended
	if err := os.Remove(b.path("pid")); err != nil {
		tb.Fatal(err)
	}
}

func (b *Bouncer) path(name string) string { return filepath.Join(b.dir, name) }

func (b *Bouncer) write(tb testing.TB, name, text string) {
	tb.Helper()
	if err := os.WriteFile(b.path(name), []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// bouncer is the program's path. Debian has it where not every PATH looks.
func bouncer(tb testing.TB) string {
	tb.Helper()
	for _, name := range []string{"pgbouncer", "/usr/sbin/pgbouncer"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	tb.Fatal("no PgBouncer here: install it (Debian: apt-get install pgbouncer); scripts/services up does where it may")
	return ""
}
