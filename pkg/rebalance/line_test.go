package rebalance_test

import (
	"testing"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
)

// The old owner goes on committing until it is taken over, one transaction behind the
// other: a takeover that only looked now and then found the row locked nearly every
// time, until the grace was over and it ended a backend that did its work. It stands
// in line: the row is its own as soon as the transaction ends that holds it.
func TestStandsInLineBehindABusyOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 0)
	cfg := w.config()
	old, next := w.session("old"), w.session("next")
	claim := w.claim(old, 0)
	var xact string
	advance := offsets.Advance{Claim: claim, Generation: gen, To: 3, LeaderEpoch: -1}
	tx, err := pgtx.Begin(t.Context(), old, patient, w.store.Fence(w.id, []offsets.Advance{advance}, &xact))
	if err != nil {
		t.Fatal(err)
	}
	m := w.join(cfg)
	m.await("waiting", 0)
	deadline, tick := time.Now().Add(limit), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		var inLine bool
		if err := next.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE wait_event_type = 'Lock' AND application_name = $1)`, cfg.Sessions+"member").Scan(&inLine); err != nil {
			t.Fatal(err)
		}
		if inLine {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the takeover never waited for the row")
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := m.await("takeover", 0); e.Claim.Next != 3 || e.Claim.Epoch != 2 {
		t.Errorf("%+v", e.Claim)
	}
	advance.Claim.Next, advance.To = 3, 6
	if tx, err := pgtx.Begin(t.Context(), old, patient, w.store.Fence(w.id, []offsets.Advance{advance}, &xact)); pgtx.Code(err) != pgtx.CodeFenced {
		t.Errorf("the old owner may go on: %v", err)
		tx.Rollback(t.Context())
	}
	m.reads(0, 3, 10)
}
