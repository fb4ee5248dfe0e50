package embedded

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The test binary is its own child, as the real binary is: the first argument says
// which part it plays.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var err error
	switch os.Args[1] {
	case PostgresVerb:
		err = ServePostgres(ctx, os.Stdin, os.Stdout, os.Stderr)
	case KafkaVerb:
		err = ServeKafka(ctx, os.Stdin, os.Stdout)
	case "parent":
		err = parent(ctx, os.Args[2])
	case "die":
		fmt.Fprintln(os.Stderr, "this is why")
		os.Exit(3)
	case "deaf": // to everything but kill -9
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("{}")
		select {}
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// parent plays a demo: it starts both servers, prints the process ids of all that
// runs now, and waits to be killed.
func parent(ctx context.Context, dir string) error {
	pg, err := StartPostgres(ctx, os.Args[0], dir, false)
	if err != nil {
		return err
	}
	k, err := StartKafka(ctx, os.Args[0], dir, "t", 1, pg)
	if err != nil {
		return err
	}
	server, err := os.ReadFile(pg.pidFile)
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(server), "\n")
	fmt.Printf("[%d, %d, %s]\n", pg.PID(), k.PID(), first)
	<-ctx.Done()
	return nil
}

func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func scratch(t *testing.T) string {
	t.Helper()
	dir, err := TempDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// gone waits until none of the processes exists.
func gone(t *testing.T, pids ...int) {
	t.Helper()
	ctx := deadline(t)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, pid := range pids {
		for alive(pid) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				t.Fatalf("process %d still runs", pid)
			}
		}
	}
}

// alive reports whether the process exists and is no zombie that waits for its parent.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err != nil || !strings.Contains(string(stat), ") Z ")
}

func TestPostgresServesAndStops(t *testing.T) {
	ctx, dir := deadline(t), scratch(t)
	pg, err := StartPostgres(ctx, self(t), dir, false)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, pg.DSN("", ""))
	if err != nil {
		t.Fatal(errors.Join(err, pg.Stop()))
	}
	var fsync, version string
	var uid int
	if err := conn.QueryRow(ctx, "SELECT current_setting('fsync'), current_setting('server_version')").Scan(&fsync, &version); err != nil {
		t.Error(err)
	}
	if fsync != "on" || !strings.HasPrefix(version, pg.Version) {
		t.Errorf("fsync %s, version %s; told %s", fsync, version, pg.Version)
	}
	_ = conn.Close(ctx)
	if info, err := os.Stat(filepath.Join(dir, "postgres", "data")); err != nil {
		t.Error(err)
	} else if uid = int(info.Sys().(*syscall.Stat_t).Uid); uid == 0 {
		t.Error("the data belongs to root")
	}
	if os.Geteuid() == 0 && pg.Account == "" {
		t.Error("as root, no account is named")
	}
	wrong, err := pgx.Connect(ctx, pg.DSN("postgres", "guess"))
	if err == nil {
		_ = wrong.Close(ctx)
		t.Error("a wrong password was let in")
	}

	server, err := os.ReadFile(pg.pidFile)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(server), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	gone(t, pg.PID(), postmaster)
}

// Where no Postgres is installed it is fetched. This is the way of a machine with
// nothing but Go; it needs the network.
func TestPostgresIsFetched(t *testing.T) {
	ctx, keeper := deadline(t), filepath.Join(t.TempDir(), "keeper")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", keeper, "./testdata/keeper").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pg, err := StartPostgres(ctx, keeper, scratch(t), true)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.Connect(ctx, pg.DSN("", ""))
	if err != nil {
		t.Fatal(errors.Join(err, pg.Stop()))
	}
	_ = conn.Close(ctx)
	if err := pg.Stop(); err != nil {
		t.Fatal(err)
	}
	gone(t, pg.PID())
}

func TestKafkaServesAndLeavesNothing(t *testing.T) {
	ctx, dir := deadline(t), scratch(t)
	k, err := StartKafka(ctx, self(t), dir, "t", 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.Address), kgo.DefaultProduceTopic("t"))
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(ctx, kgo.StringRecord("x")).FirstErr(); err != nil {
		t.Error(err)
	}
	cl.Close()
	if entries, err := os.ReadDir(filepath.Join(dir, "kafka")); err != nil || len(entries) == 0 {
		t.Errorf("nothing on disk: %v", err)
	}
	if err := k.Stop(); err != nil {
		t.Fatal(err)
	}
	gone(t, k.PID())
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

// kill -9 of the parent leaves no process and no file behind.
func TestNothingOutlivesTheParent(t *testing.T) {
	dir := scratch(t)
	p, err := Start(Spec{Name: "parent", Path: self(t), Args: []string{"parent", dir}, Answers: true,
		Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	if err := p.Answer(deadline(t), &pids); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if !alive(pid) {
			t.Fatalf("process %d does not run", pid)
		}
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	gone(t, pids...)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory is still there: %v", err)
	}
}

func TestDeathIsToldWithTheLog(t *testing.T) {
	c, err := Start(Spec{Name: "member 1", Path: self(t), Args: []string{"die"}, Answers: true, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	err = c.Answer(deadline(t), &struct{}{})
	if err == nil || !strings.Contains(err.Error(), "member 1 ended by itself: exit status 3") || !strings.Contains(err.Error(), "this is why") {
		t.Fatalf("got %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Errorf("a child that is gone: %v", err)
	}
}

func TestStopKillsTheDeaf(t *testing.T) {
	c, err := Start(Spec{Name: "member 1", Path: self(t), Args: []string{"deaf"}, Answers: true, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Answer(deadline(t), &struct{}{}); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "member 1 did not end within 50ms") {
		t.Errorf("got %v", err)
	}
	gone(t, c.PID())
}

func TestAnswerIsBounded(t *testing.T) {
	c, err := Start(Spec{Name: "Kafka", Path: self(t), Args: []string{KafkaVerb}, Answers: true, Log: filepath.Join(t.TempDir(), "log")})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.Answer(ctx, &struct{}{}); err == nil || !strings.Contains(err.Error(), "Kafka did not get ready") {
		t.Errorf("got %v", err)
	}
	if err := c.Kill(); err != nil {
		t.Error(err)
	}
}

func TestTailIsTheEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if got := Tail(path); got != "" {
		t.Errorf("no file: %q", got)
	}
	var b strings.Builder
	for i := range 5000 {
		_, _ = fmt.Fprintf(&b, "line %d\n", i)
	}
	if err := os.WriteFile(path, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	got := Tail(path)
	if !strings.Contains(got, "  line 4988\n") || !strings.HasSuffix(got, "line 4999") || strings.Contains(got, "line 4987\n") {
		t.Errorf("got %s", got)
	}
}

// A tree like a distribution's, with a client-only installation and one too old.
func TestNewestCompleteInstallationWins(t *testing.T) {
	root := t.TempDir()
	place := func(dir, version string, programs ...string) string {
		bin := filepath.Join(root, dir, "bin")
		if err := os.MkdirAll(bin, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, name := range programs {
			script := "#!/bin/sh\necho 'postgres (PostgreSQL) " + version + "'\n"
			if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		return bin
	}
	server := []string{"initdb", "pg_ctl", "postgres"}
	for _, tc := range []struct {
		bin   string
		major int
		ok    bool
	}{
		{place("15", "15.18 (Debian 15.18-0+deb12u1)", server...), 15, true},
		{place("18beta", "18beta1", server...), 18, true},
		{place("client", "17.1", "psql"), 0, false},
		{place("broken", "nonsense", server...), 0, false},
	} {
		if got, ok := inspect(t.Context(), tc.bin); ok != tc.ok || got.major != tc.major {
			t.Errorf("%s: %+v, %t; want %d, %t", tc.bin, got, ok, tc.major, tc.ok)
		}
	}
}

func TestOtherAccountsMayPassThrough(t *testing.T) {
	dir := scratch(t)
	if !passable(dir) {
		t.Errorf("%s cannot be passed", dir)
	}
	closed := filepath.Join(dir, "closed")
	if err := os.MkdirAll(filepath.Join(closed, "in"), 0o700); err != nil {
		t.Fatal(err)
	}
	if passable(filepath.Join(closed, "in")) {
		t.Error("a directory below a closed one passes as open")
	}
}
