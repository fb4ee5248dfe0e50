package offsets_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// TestFence: each thing the fence expects, wrong by itself and beside a partition
// that is all right. Nothing may move, and what stood in the transaction is gone.
func TestFence(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	table := w.Table(t, "effects", "text text")
	good, mine := w.claim(0, 'a'), w.claim(1, 'a')
	for _, c := range []struct {
		name   string
		change func(*offsets.Advance)
	}{
		{"owner", func(a *offsets.Advance) { a.Claim.Owner = stream.UUID{'b'} }},
		{"no owner", func(a *offsets.Advance) { a.Claim.Owner = stream.UUID{} }},
		{"position behind", func(a *offsets.Advance) { a.Claim.Next-- }},
		{"position ahead", func(a *offsets.Advance) { a.Claim.Next++ }},
		{"generation", func(a *offsets.Advance) { a.Generation = []byte("other") }},
		{"no generation", func(a *offsets.Advance) { a.Generation = nil }},
		{"missing row", func(a *offsets.Advance) { a.Claim.Partition.Number = 9 }},
		{"another topic id", func(a *offsets.Advance) { a.Claim.Partition.Topic = stream.UUID{0xbb} }},
		{"backwards", func(a *offsets.Advance) { a.To = a.Claim.Next - 1 }},
		{"the same partition twice", func(a *offsets.Advance) { a.Claim = good; a.To = good.Next + 2 }},
	} {
		for name, neighbours := range map[string][]stream.Claim{"alone": nil, "behind another": {good}} {
			var as []offsets.Advance
			for _, n := range neighbours {
				as = append(as, offsets.Advance{Claim: n, Generation: gen, To: n.Next + 5})
			}
			bad := offsets.Advance{Claim: mine, Generation: gen, To: mine.Next + 5}
			c.change(&bad)
			if c.name == "the same partition twice" && neighbours == nil {
				continue // alone it is all right
			}
			var xact string
			err := pgtx.Once(t.Context(), w.conn, patient,
				pgtx.Statement{Step: pgtx.StepEffect, SQL: "INSERT INTO " + table + " VALUES ('before')"},
				w.store.Fence(w.id, append(as, bad), &xact),
				pgtx.Statement{Step: pgtx.StepEffect, SQL: "INSERT INTO " + table + " VALUES ('behind')"})
			var at *pgtx.StepError
			if pgtx.Code(err) != pgtx.CodeFenced || !errors.As(err, &at) || at.Step != pgtx.StepFence {
				t.Errorf("%s, %s: %v, want %s at the fence", c.name, name, err, pgtx.CodeFenced)
			}
			w.want(c.name+", "+name, "0 at 0 owner 61 epoch 1 by host", "1 at 100 owner 61 epoch 1 by host")
		}
	}
	var n int
	if err := w.Owner.QueryRow(t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d effects of fenced transactions, %v", n, err)
	}
	if err := w.advance(w.conn, 5, mine, good); err != nil {
		t.Error(err)
	}
	w.want("all right", "0 at 5 owner 61 epoch 1 by host", "1 at 105 owner 61 epoch 1 by host")
}

// TestFenceAnswersItsTransaction: step 4 compares this id.
func TestFenceAnswersItsTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	var fence, now string
	a := offsets.Advance{
		Claim: w.claim(0, 'a'), Generation: gen, To: 3, LeaderEpoch: 12,
		Newest: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	err := pgtx.Once(t.Context(), w.conn, patient, w.store.Fence(w.id, []offsets.Advance{a}, &fence), pgtx.Statement{
		SQL: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func(r pgtx.Row) error { return r.Scan(&now) },
	})
	if err != nil || fence == "" || fence != now {
		t.Errorf("fence answered %q in transaction %q, %v", fence, now, err)
	}
	var epoch int
	var newest time.Time
	read := "SELECT leader_epoch, last_record_time FROM " + w.Relation("positions")
	if err := w.Owner.QueryRow(t.Context(), read).Scan(&epoch, &newest); err != nil || epoch != 12 || !newest.Equal(a.Newest) {
		t.Errorf("leader epoch %d, newest %s, %v", epoch, newest, err)
	}
	// A batch without records, or with older ones, does not move the time back.
	a.Claim.Next, a.To, a.Newest = 3, 4, time.Time{}
	if err := pgtx.Once(t.Context(), w.conn, patient, w.store.Fence(w.id, []offsets.Advance{a}, &fence)); err != nil {
		t.Fatal(err)
	}
	var later time.Time
	if err := w.Owner.QueryRow(t.Context(), read).Scan(&epoch, &later); err != nil || !later.Equal(newest) {
		t.Errorf("newest %s, %v", later, err)
	}
}

// TestFenceAfterTakeover: whatever the old owner still sends is fenced, from the
// moment the takeover committed.
func TestFenceAfterTakeover(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	old := w.claim(0, 'a')
	if err := w.advance(w.conn, 10, old); err != nil {
		t.Fatal(err)
	}
	old.Next = 10
	next := w.claim(0, 'b')
	if next.Next != 10 || next.LeaderEpoch != 4 || next.Epoch != 2 {
		t.Errorf("the new claim is %+v", next)
	}
	if err := w.advance(w.session(), 1, old); pgtx.Code(err) != pgtx.CodeFenced {
		t.Errorf("the old owner: %v", err)
	}
	if err := w.advance(w.conn, 1, next); err != nil {
		t.Error(err)
	}
	w.want("after it", "0 at 11 owner 62 epoch 2 by host")
}

// TestFenceWaitsForTheCommit: the zombie's story. A owns the row and has fenced; B
// wants the claim and waits for A's transaction. A commits, B sees A's position.
func TestFenceWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	a, zombie := w.claim(0, 'a'), w.session()
	var xact string
	tx, err := pgtx.Begin(t.Context(), zombie, patient,
		w.store.Fence(w.id, []offsets.Advance{{Claim: a, Generation: gen, To: 7}}, &xact))
	if err != nil {
		t.Fatal(err)
	}
	taker := w.session()
	answers := make(chan []offsets.Answer, 1)
	go func() {
		got, err := w.store.Takeover(t.Context(), taker, patient, w.id, "new", []offsets.Taking{taking(0, 'b')}, true)
		if err != nil {
			t.Error(err)
		}
		answers <- got
	}()
	w.blocked(taker.PgConn().PID(), zombie.PgConn().PID())
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := <-answers
	if len(got) != 1 || got[0].Outcome != offsets.Taken || got[0].Claim.Next != 7 || got[0].Claim.Epoch != 2 || got[0].Holder != "new" {
		t.Errorf("%+v", got)
	}
	a.Next = 7
	if err := w.advance(zombie, 1, a); pgtx.Code(err) != pgtx.CodeFenced {
		t.Errorf("the zombie's next batch: %v", err)
	}
}

// blocked returns once the backend waits for the other.
func (w *world) blocked(waiter, holder uint32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 20*time.Second)
	defer cancel()
	for {
		var yes bool
		if err := w.Owner.QueryRow(ctx, "SELECT $2 = ANY (pg_blocking_pids($1))", int32(waiter), int32(holder)).Scan(&yes); err != nil {
			w.t.Fatalf("waiting for a lock to be waited for: %v", err)
		}
		if yes {
			return
		}
	}
}

// TestFenceLockOrder: two members' combined batches over the same partitions,
// named in opposite order, never deadlock.
func TestFenceLockOrder(t *testing.T) {
	t.Parallel()
	const partitions, rounds = 6, 200
	w := newWorld(t, partitions)
	ended := make(chan error, 2)
	for member := range 2 {
		conn := w.session()
		go func() {
			ended <- w.storm(conn, member == 1, rounds, partitions)
		}()
	}
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// storm takes all partitions over and fences them, in one order or the other. To be
// fenced by the other member is all right; a deadlock (40P01) is not.
func (w *world) storm(conn *pgx.Conn, backwards bool, rounds int, partitions int32) error {
	owner := byte('a')
	ts := make([]offsets.Taking, partitions)
	for n := range partitions {
		ts[n] = taking(n, owner)
	}
	if backwards {
		slices.Reverse(ts)
		owner = 'b'
	}
	for range rounds {
		for i := range ts {
			ts[i].Claim.Owner = stream.UUID{owner}
		}
		answers, err := w.store.Takeover(w.t.Context(), conn, patient, w.id, "host", ts, true)
		if err != nil {
			return err
		}
		claims := make([]stream.Claim, len(answers))
		for i, a := range answers {
			if a.Claim.Partition != ts[i].Claim.Partition {
				return fmt.Errorf("answer %d is about %s", i, a.Claim.Partition)
			}
			claims[i] = a.Claim
		}
		if err := w.advance(conn, 1, claims...); err != nil && pgtx.Code(err) != pgtx.CodeFenced {
			return err
		}
	}
	return nil
}
