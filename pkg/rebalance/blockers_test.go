package rebalance_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// TestEndStuck: a session of ours stands still with a lock that others of ours queue
// up for. It alone is ended, and not at once: it may have just got the lock. The one in
// front of the queue, which is what blocks who is behind it, goes on once it has it.
func TestEndStuck(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 0)
	cfg := w.config()
	stuck, first := w.session(cfg.Sessions+"stuck"), w.session(cfg.Sessions+"first")
	tx := w.lock(stuck, 0)
	wait := w.store.Read(w.id, []stream.Partition{w.part(0)}, true, func(offsets.Row) {})
	served := make(chan error, 1)
	go func() { served <- pgtx.Once(t.Context(), first, patient, wait) }()
	w.queues(first.PgConn().PID())
	ended, others, err := rebalance.EndStuck(t.Context(), cfg.Control, cfg.Sessions, time.Hour,
		rebalance.Wait{
			Settings: pgtx.Settings{Lock: 50 * time.Millisecond, Statement: time.Minute, Idle: time.Minute},
			Do:       func(ctx context.Context, tx *pgtx.Tx) error { return tx.Run(ctx, wait) },
		})
	if err != nil || len(others)+len(ended) > 0 {
		t.Errorf("too early: ended %q, others %q, %v", ended, others, err)
	}
	got := errors.New("it was not asked")
	ended, others, err = rebalance.EndStuck(t.Context(), cfg.Control, cfg.Sessions, 300*time.Millisecond,
		rebalance.Wait{Settings: patient, Do: func(ctx context.Context, tx *pgtx.Tx) error {
			got = tx.Run(ctx, wait)
			return got
		}})
	if err != nil || got != nil || len(others) > 0 || len(ended) != 1 || !strings.Contains(ended[0], "stuck") {
		t.Errorf("ended %q, others %q, %v; the lock: %v", ended, others, err, got)
	}
	if err := <-served; err != nil {
		t.Errorf("the first of the queue: %v", err)
	}
	if err := tx.Run(t.Context(), wait); pgtx.Code(err) != "57P01" {
		t.Errorf("who stood still heard %v, want admin_shutdown", err)
	}
}

// queues returns when a session waits for a lock.
func (w *world) queues(pid uint32) {
	w.t.Helper()
	for waits := false; !waits; {
		if err := w.Owner.QueryRow(w.t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", int32(pid)).Scan(&waits); err != nil {
			w.t.Fatal(err)
		}
	}
}
