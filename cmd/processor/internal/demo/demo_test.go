package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

// The test binary is its own child: with a verb as first argument it is the
// program, else the tests.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		root := &cobra.Command{Use: "processor", SilenceUsage: true}
		root.AddCommand(Commands()...)
		root.AddCommand(&cobra.Command{Use: "run", DisableFlagParsing: true, RunE: func(cmd *cobra.Command, args []string) error {
			return standIn(cmd.Context(), standInArgs(args))
		}})
		if err := root.ExecuteContext(ctx); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func options(t *testing.T) Options {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Options{Records: 60_000, Partitions: 8, Members: 2, Seed: 5, JSON: true, Binary: path}
}

func TestDemoKillsAndCounts(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var out, progress bytes.Buffer
	if err := Run(ctx, options(t), &out, &progress); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), progress.String())
	}
	var r Result
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s%s", progress.String(), r.table())
	if r.Ours.Rows != 54_000 || r.Ours.Stopped != 6000 || r.Ours.Kills != kills || r.Naive.Kills != kills {
		t.Errorf("%+v", r)
	}
	if r.Naive.Lost != 0 || r.Naive.Doubled < 6000 || r.Naive.Rows != r.Distinct+r.Naive.Doubled {
		t.Errorf("the naive consumer: %+v", r.Naive)
	}
}
