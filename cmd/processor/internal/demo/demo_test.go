package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"effectonce/cmd/processor/internal/embedded"
	"effectonce/cmd/processor/internal/naive"
	"effectonce/cmd/processor/internal/run"
)

// broken is the variable that makes every member of the test's demo fail at once.
const broken = "DEMO_TEST_BROKEN"

// The test binary is its own child, as the real binary is: with a verb as first
// argument it is the program, else the tests.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "processor", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(append(Commands(), naive.Command())...)
	if os.Getenv(broken) == "" {
		root.AddCommand(run.Command())
	}
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Small enough for a test, slow enough that there is work left for every kill.
func options(t *testing.T) Options {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Records: 60_000, Partitions: 8, Members: 2, Seed: 5, JSON: true, Binary: path, rate: 10_000}
}

// whole runs a demo in a temporary directory of the test's own, in which nothing
// may be left, and returns what it printed.
func whole(t *testing.T, o Options) (out, progress string, err error) {
	t.Helper()
	scratch, err := os.MkdirTemp("", "effectonce-test-") //nolint:usetesting // Postgres runs under another account and must pass through it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(scratch) })
	if err := os.Chmod(scratch, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", scratch)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	err = Run(ctx, o, &stdout, &stderr)
	if left, readErr := os.ReadDir(scratch); readErr != nil || len(left) > 0 {
		t.Errorf("left behind: %v %v", left, readErr)
	}
	return stdout.String(), stderr.String(), err
}

func TestDemoKillsAndCounts(t *testing.T) {
	out, progress, err := whole(t, options(t))
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, progress)
	}
	var r Result
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s", progress, r.table())
	if o := r.Ours; o.Rows != 54_000 || o.Stopped != 6000 || o.Kills < 1 || o.Lost != 0 || o.Doubled != 0 || o.OutOfOrder != 0 {
		t.Errorf("ours: %+v", o)
	}
	if n := r.Naive; n.Kills < 1 || n.Lost != 0 || n.Doubled < 6000 || n.Rows != r.Distinct+n.Doubled {
		t.Errorf("the naive consumer: %+v", n)
	}
	for _, want := range []string{"Postgres 1", "kill -9 member ", "kill -9 naive consumer ", "processor demo --keep"} {
		if !strings.Contains(progress, want) {
			t.Errorf("progress does not say %q:\n%s", want, progress)
		}
	}
}

var memberDied = regexp.MustCompile(`member [12] ended by itself: exit status 1`)

// A member that ends by itself ends the demo, which says what died and why.
func TestDemoTellsWhatDied(t *testing.T) {
	t.Setenv(broken, "1")
	start := time.Now()
	_, _, err := whole(t, options(t))
	// Every member is broken, so either may be the first.
	if err == nil || !memberDied.MatchString(err.Error()) || !strings.Contains(err.Error(), `unknown command "run"`) {
		t.Errorf("got %v", err)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %s to notice", took)
	}
}

// kill -9 of the demo itself, in the middle of its work, leaves no process and no
// file behind.
func TestNothingOutlivesTheDemo(t *testing.T) {
	scratch, err := os.MkdirTemp("", "effectonce-test-") //nolint:usetesting // Postgres runs under another account and must pass through it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(scratch) })
	if err := os.Chmod(scratch, 0o711); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), options(t).Binary, "demo", "--records", "100000000")
	cmd.Env = append(os.Environ(), "TMPDIR="+scratch)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "two members", func() bool { return len(children(t, cmd.Process.Pid)) == 6 })
	pids := children(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = stderr.Close()
	_ = cmd.Wait() // it was killed
	for _, pid := range pids {
		waitFor(t, "the end of "+strconv.Itoa(pid), func() bool { return !alive(pid) })
	}
	waitFor(t, "an empty directory", func() bool {
		left, err := os.ReadDir(scratch)
		return err == nil && len(left) == 0
	})
}

// Where the kernel does not tell, demo-child ends the verb when the pipe closes.
// Here the verb waits for a broker that is not there.
func TestChildEndsWithItsPipe(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "orders.yaml")
	if err := os.WriteFile(file, []byte(pipeline("127.0.0.1:1", "postgres://x@127.0.0.1:1/x?sslmode=disable")), 0o600); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(dir, "log")
	port, err := embedded.FreePort(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	child, err := embedded.Start(embedded.Spec{Name: "member", Path: options(t).Binary, Log: log,
		Args: []string{childVerb, "run", file, "--set", fmt.Sprintf("admin.listen=127.0.0.1:%d", port)}})
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, "the member to start", func() bool { return strings.Contains(child.Tail(), `"starting"`) })
	child.Hush()
	select {
	case <-child.Done():
	case <-time.After(time.Minute):
		t.Error("it goes on without its parent" + child.Tail())
	}
	if err := child.Kill(); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, args := range []string{"--records 10", "--partitions 0", "--members 17", "-o yaml"} {
		cmd := command()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%s was taken", args)
		}
	}
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

// children returns the process ids of the children of a process.
func children(t *testing.T, parent int) []int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var pid, up int
		var name, state string
		if n, _ := fmt.Sscanf(strings.ReplaceAll(string(text), "(", " "), "%d %s %s %d", &pid, &name, &state, &up); n == 4 && up == parent {
			pids = append(pids, pid)
		}
	}
	return pids
}

// alive reports whether the process exists and is no zombie.
func alive(pid int) bool {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(text), ") Z ")
}
