package storm

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/naive"
	"effectonce/cmd/processor/internal/run"
	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
)

// The test binary is its own member, as the real binary is: with a verb as first
// argument it is the program, else the tests.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{Use: "processor", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(run.Command(), naive.Command())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// TestSmoke plays all of it small: nothing is lost or doubled, every figure is there,
// alone on standard output, the timeline is a picture, and nothing is left behind.
// What it measures is nobody's promise here.
func TestSmoke(t *testing.T) {
	dsn, broker, dir := pgtest.DSN(t), kafkatest.Broker(t), t.TempDir()
	t.Setenv("TMPDIR", t.TempDir())
	svg := filepath.Join(dir, "storm.svg")
	cmd := Command()
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{
		"--dsn", dsn, "--brokers", broker, "--members", "2", "--partitions", "4", "--calm", "1s", "--storm", "4s", "--rate", "60",
		"--restarts", "1", "--kills", "1", "--session", "1s", "--heartbeat", "250ms", "--batch", "50", "--ahead", "2000", "--naive-rate", "500", "--seed", "3", "--svg", svg, "-o", "json",
	})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var r Result
	d := json.NewDecoder(&stdout)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil || d.More() {
		t.Fatalf("%v, more: %t", err, d.More())
	}
	if !r.exact() || r.Rows != r.Keys || r.Keys == 0 || r.Records <= r.Keys {
		t.Errorf("%+v, %d records, %d keys", r.Tally, r.Records, r.Keys)
	}
	if r.ThroughputKept <= 0 || r.UnmovedMaxGap <= 0 || r.MovedGapP99 <= 0 || r.KillP99OverTimeout <= 0 || r.Kills != 1 || r.KillsAtOnce != 1 || r.Restarts != 1 {
		t.Errorf("a figure is missing: %+v", r)
	}
	if n := r.Events[join] + r.Events[leave] + r.Events[freeze] + r.Events[kill]; n < 2 {
		t.Errorf("events: %v", r.Events)
	}
	if r.Naive == nil || r.Naive.Rows < r.NaiveRecords || r.NaiveLost != 0 || r.NaiveDoubled == 0 {
		t.Errorf("the at-least-once group: %+v of %d records", r.Naive, r.NaiveRecords)
	}
	wellFormed(t, svg)
	nothingLeft(t, dsn)
}

// wellFormed requires well-formed XML without a script.
func wellFormed(t *testing.T, path string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	shapes := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			shapes[e.Name.Local]++
		}
	}
	if shapes["svg"] != 1 || shapes["rect"] < 10 || shapes["path"] < 5 || shapes["text"] < 10 || shapes["script"] > 0 {
		t.Errorf("shapes: %v", shapes)
	}
}

func nothingLeft(t *testing.T, dsn string) {
	t.Helper()
	if left, err := os.ReadDir(os.Getenv("TMPDIR")); err != nil || len(left) > 0 {
		t.Errorf("files left behind: %v %v", left, err)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	var left int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname ~ $1`, fmt.Sprintf("^effectonce_storm_.*_%d", os.Getpid())).Scan(&left)
	if err = errors.Join(err, conn.Close(t.Context())); err != nil || left != 0 {
		t.Errorf("%d schemas are left behind, %v", left, err)
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"--protocol", "eager"}, {"--members", "1"}, {"--partitions", "2"}, {"--kinds", "rain"}, {"--rate", "0"}, {"--storm", "0s"},
		{"--session", "1s", "--heartbeat", "500ms"}, {"--kills", "-1"}, {"--kills-at-once", "0"}, {"--batch", "0"},
	} {
		cmd := Command()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); exit.Code(err) != exit.UsageError {
			t.Errorf("%v: exit code %d, %v", args, exit.Code(err), err)
		}
	}
}

// A table that is not exact ends the verb with 3, whatever the protocol.
func TestVerdictRefuses(t *testing.T) {
	t.Parallel()
	good, bad := &Result{Protocol: "cooperative"}, &Result{Protocol: "range", Tally: Tally{Doubled: 1}}
	if err := exit.With(exit.Refused, report{good}.verdict()); err != nil {
		t.Error(err)
	}
	err := exit.With(exit.Refused, report{good, bad}.verdict())
	if exit.Code(err) != exit.Refused || !strings.Contains(err.Error(), "range") || strings.Contains(err.Error(), "cooperative") {
		t.Errorf("%v, code %d", err, exit.Code(err))
	}
}
