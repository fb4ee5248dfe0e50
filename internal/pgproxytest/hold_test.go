package pgproxytest_test

import (
	"testing"
	"time"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtx"
)

// A statement held in front of the server has taken no lock there; one held
// behind has.
func TestHoldsStatement(t *testing.T) {
	for _, c := range []struct {
		fault  pgproxytest.Fault
		locked bool
	}{{pgproxytest.HoldBefore, false}, {pgproxytest.HoldBehind, true}} {
		b := newBench(t)
		if _, err := b.owner.Exec(t.Context(), "INSERT INTO "+b.table+" VALUES (1)"); err != nil {
			t.Fatal(err)
		}
		conn := b.through(t)
		b.proxy.Arm(c.fault, pgproxytest.Filter{SQL: "UPDATE"})
		update := pgtx.Statement{Step: pgtx.StepEffect, SQL: "UPDATE " + b.table + " SET id = 2"}
		ended := make(chan error, 1)
		go func() {
			ended <- pgtx.Once(t.Context(), conn, pgtx.DefaultSettings, b.insert(7), update)
		}()
		b.fired(t, c.fault)
		// The server reads what it was sent in its own time.
		deadline := time.Now().Add(10 * time.Second)
		for locked(t, b) != c.locked && time.Now().Before(deadline) {
			time.Sleep(5 * time.Millisecond) //nolint:forbidigo // nothing tells when a session has taken its lock
		}
		if got := locked(t, b); got != c.locked {
			t.Errorf("fault %d: row locked %v, want %v", c.fault, got, c.locked)
		}
		select {
		case err := <-ended:
			t.Fatalf("fault %d: the transaction ended while held: %v", c.fault, err)
		default:
		}
		b.proxy.Release()
		if err := <-ended; err != nil {
			t.Errorf("fault %d: %v", c.fault, err)
		}
		if n := b.rows(t); n != 2 {
			t.Errorf("fault %d: %d rows, want 2", c.fault, n)
		}
	}
}

// locked reports whether a session holds the first row.
func locked(t *testing.T, b *bench) bool {
	t.Helper()
	var free int
	if err := b.owner.QueryRow(t.Context(), "SELECT count(*) FROM (SELECT FROM "+b.table+" FOR UPDATE SKIP LOCKED) x").Scan(&free); err != nil {
		t.Fatal(err)
	}
	return free == 0
}
