package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/proctest"
)

// The server goes down as if the machine had lost power, in the middle of
// commits, and comes back. No member ends; COMMITs without an answer are settled.
func TestPostgresCrashes(t *testing.T) {
	s := startServer(t)
	t.Setenv("EFFECTONCE_TEST_POSTGRES", s.dsn())
	// The server outlives the world, which cleans up behind itself there.
	t.Run("twice", s.crashTwice)
}

func (s *server) crashTwice(t *testing.T) {
	w := newWorld(t, 4, 81)
	w.start()
	w.start()
	for range 2 {
		w.balanced()
		at := w.progress() + 3_000
		w.produce(12_000, func() {
			w.await("the moment to crash", func() bool { return w.progress() >= at })
			s.crash(t)
			s.start(t)
			w.db.Owner.Reset()
			w.db.Runtime.Reset()
		})
		w.exact("after a crash", nil)
		w.exact("drained", w.drained())
	}
}

// server is a Postgres of this test's own, durable as a real one.
type server struct {
	life    testing.TB // how long it may run
	account *syscall.Credential
	dir     string
	port    int
	ended   <-chan struct{}
}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{life: t, account: proctest.Unprivileged(t), port: proctest.Ports(t, 1)[0]}
	s.dir = proctest.Dir(t, s.account)
	initdb := exec.CommandContext(t.Context(), program(t, "initdb"), "--no-sync", "-D", s.data(), "-U", "postgres", "-E", "UTF8", "-A", "trust")
	initdb.SysProcAttr, initdb.Dir = &syscall.SysProcAttr{Credential: s.account}, s.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	s.start(t)
	return s
}

func (s *server) data() string { return filepath.Join(s.dir, "data") }

func (s *server) dsn() string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", s.port)
}

// program is the path of one of Postgres's programs.
func program(t *testing.T, name string) string {
	t.Helper()
	if dir := os.Getenv("EFFECTONCE_TEST_POSTGRES_BIN"); dir != "" {
		return filepath.Join(dir, name)
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	if err != nil || len(found) == 0 {
		t.Fatal("no PostgreSQL server here: set EFFECTONCE_TEST_POSTGRES_BIN to the directory of initdb")
	}
	return found[len(found)-1]
}

// start returns when the server lets its administrator in.
func (s *server) start(t *testing.T) {
	t.Helper()
	log := filepath.Join(s.life.TempDir(), "postgres.log")
	s.ended = proctest.Start(s.life, proctest.Server{
		Args: []string{
			program(t, "postgres"), "-D", s.data(), "-c", "port=" + strconv.Itoa(s.port), "-c", "listen_addresses=127.0.0.1",
			"-c", "unix_socket_directories=",
		},
		Log: log, Signal: "INT", Account: s.account,
	})
	await(t, "the private Postgres", func() bool {
		select {
		case <-s.ended:
			text, _ := os.ReadFile(log) // what there is of it
			t.Fatalf("the private Postgres ended:\n%s", text)
		default:
		}
		conn, err := pgx.Connect(t.Context(), s.dsn())
		if err != nil {
			return false
		}
		_ = conn.Close(t.Context()) // nothing is left to lose
		return true
	})
}

// crash is an immediate shutdown: no checkpoint, no farewell; the next start
// recovers.
func (s *server) crash(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		t.Fatalf("postmaster.pid: %v", err)
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		t.Fatalf("crash: %v", err)
	}
	<-s.ended
}
