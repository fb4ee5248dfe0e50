package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/pgtest"
	"effectonce/internal/redistest"
)

// TestDedupSmoke runs all of it small: every figure is there, alone on standard
// output, and nothing is left behind. What it measures is nobody's promise here.
func TestDedupSmoke(t *testing.T) {
	dsn, server := pgtest.DSN(t), redistest.New(t)
	cmd := dedupCommand()
	var stdout, stderr bytes.Buffer
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs([]string{"--dsn", dsn, "--history", "60000", "--rounds", "1", "--redis", server.Address, "-o", "json"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var figures map[string]any
	d := json.NewDecoder(&stdout)
	if err := d.Decode(&figures); err != nil || d.More() {
		t.Fatalf("%v, more: %t", err, d.More())
	}
	for _, name := range []string{
		"history_ratio", "bytes_per_key", "memory_bytes_per_key", "segment_filter_bytes_per_key", "false_positive_rate",
		"first_commit_seconds", "rebuild_over_scan", "redis_over_postgres", "replay_speedup", "old_duplicates_ratio",
	} {
		if v, ok := figures[name].(float64); !ok || v <= 0 {
			t.Errorf("%s is %v", name, figures[name])
		}
	}
	if fill, ok := figures["gate_fill"].(float64); !ok || fill < 0.99 || fill > 1 {
		t.Errorf("the gate was measured at a fill of %v", figures["gate_fill"])
	}
	if !bytes.Contains(stderr.Bytes(), []byte("load average")) {
		t.Errorf("no load average in\n%s", stderr.String())
	}
	if left := server.Under(""); len(left) > 0 {
		t.Errorf("Redis still holds %v", left)
	}
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	var left int
	err = conn.QueryRow(t.Context(), `SELECT count(*) FROM pg_namespace WHERE nspname ~ $1`, fmt.Sprintf("^effectonce_bench_.*_%d_", os.Getpid())).Scan(&left)
	if err = errors.Join(err, conn.Close(t.Context())); err != nil || left != 0 {
		t.Errorf("%d schemas are left behind, %v", left, err)
	}
}

func TestDedupUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--history", "10"}, {"--rounds", "0"}, {"--dsn", "port=x"}} {
		cmd := dedupCommand()
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		cmd.SetErr(&bytes.Buffer{})
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); exit.Code(err) != exit.UsageError {
			t.Errorf("%v: exit code %d, %v", args, exit.Code(err), err)
		}
	}
}

// TestLedgerFindsDuplicates: a ledger whose count of duplicates cannot be trusted
// would measure a store that loses or doubles keys.
func TestLedgerFindsDuplicates(t *testing.T) {
	t.Parallel()
	config, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	l, err := openLedger(t.Context(), config, schemaName("ledger"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.remove(t.Context())
	h := history{rng: rand.New(rand.NewPCG(1, 2)), res: DedupResult{SealKeys: 10_000}}
	for range 3 {
		if _, err := h.apply(t.Context(), l, h.usual(), 25_000, 0, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.sealNow(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := h.apply(t.Context(), l, h.usual(), 20_000, 0.3, true); err != nil || l.found < 5000 || l.found > 7000 {
		t.Errorf("%d duplicates, %v", l.found, err)
	}
	l.next = 0 // what is sent now is old, and nobody said so
	if _, err := h.apply(t.Context(), l, h.usual(), 1000, 0, true); !errors.Is(err, errDuplicates) {
		t.Error(err)
	}
	var rows, distinct int64
	if err := l.conn.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT order_id) FROM "+l.data()+".effects").Scan(&rows, &distinct); err != nil ||
		rows != distinct || rows != l.claim.Next-l.found {
		t.Errorf("%d rows of %d orders, %d records, %d duplicates (%v)", rows, distinct, l.claim.Next, l.found, err)
	}
}
