package rebalance_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// written is what the table of stops says of partition n, empty if nothing.
func (w *world) written(n int32) string {
	w.t.Helper()
	var text string
	if err := w.Owner.QueryRow(w.t.Context(), "SELECT coalesce(max(code || ' at ' || coalesce(next_offset::text, 'none') || ': ' || what || '; ' || fix), '') FROM "+
		w.Relation("stops")+" WHERE partition = $1", n).Scan(&text); err != nil {
		w.t.Fatal(err)
	}
	return text
}

// awaitWritten waits until the table of stops says something of partition n, or
// nothing.
func (w *world) awaitWritten(n int32, part string) {
	w.t.Helper()
	deadline := time.Now().Add(limit)
	for got := w.written(n); !strings.Contains(got, part) || part == "" && got != ""; got = w.written(n) {
		if time.Now().After(deadline) {
			w.t.Fatalf("partition %d: %q is written, want %q", n, got, part)
		}
	}
}

// decide moves partition n's position as an operator does.
func (w *world) decide(n int32, to int64) {
	w.t.Helper()
	row := w.row(n)
	tx, err := pgtx.Begin(w.t.Context(), w.Conn(w.t), patient)
	if err != nil {
		w.t.Fatal(err)
	}
	err = w.store.Move(w.t.Context(), tx, w.id, offsets.Move{
		Partition: row.Partition, Owner: row.Owner, Generation: row.Generation, From: row.Next, To: to, LeaderEpoch: -1, Mirror: -1,
	}, offsets.Decision{Kind: "rewind", Detail: []byte("{}")})
	if err = errors.Join(err, tx.Commit(w.t.Context())); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) decisions() (reasons string) {
	w.t.Helper()
	if err := w.Owner.QueryRow(w.t.Context(), "SELECT coalesce(string_agg(kind || ', ' || reason, '; '), '') FROM "+w.Relation("decisions")).Scan(&reasons); err != nil {
		w.t.Fatal(err)
	}
	return reasons
}

// A stopped partition is written down, with its range and the command; a decision
// about its position has the member take it over again, without a restart.
func TestADecisionIsNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2, 0)
	if err := w.fake.DeleteRecords(topic, 0, 5); err != nil {
		t.Fatal(err)
	}
	m := w.join(w.config())
	w.awaitWritten(0, "out_of_range at 2: offsets 2 to 4 are gone from Kafka unapplied: the position is 2, the log is [5, 10); processor partitions resolve orders/0 --accept-loss goes on at 5")
	if lost := m.held(0).Cause.Lost; lost != (rebalance.Range{From: 2, To: 5}) {
		t.Errorf("lost %v", lost)
	}
	m.reads(1, 0, 10) // the other goes on
	w.decide(0, 5)
	m.await("decided", 0)
	m.reads(0, 5, 10)
	if h := m.held(0); h.State != rebalance.Running {
		t.Errorf("%+v", h)
	}
	w.awaitWritten(0, "")
}

// Whoever deletes what is written about a stop has the partition tried again.
func TestAStopThatIsDeletedIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 0)
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.group.Stop(m.held(0).Claim, rebalance.Cause{Code: "setup", Text: "no table"})
	w.awaitWritten(0, "setup at 0: no table")
	w.Exec(t, "DELETE FROM "+w.Relation("stops"))
	m.await("decided", 0)
	m.reads(0, 0, 10)
}

// While the database is down nothing is written; it is made up for.
func TestAStopIsWrittenOnceTheDatabaseAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 0)
	cfg := w.config()
	m := w.join(cfg)
	m.reads(0, 0, 10)
	w.awaitWritten(0, "") // what runs is known
	w.Exec(t, "ALTER TABLE "+w.Relation("stops")+" RENAME TO away")
	m.group.Stop(m.held(0).Claim, rebalance.Cause{Code: "setup", Text: "no table"})
	for said := ""; !strings.Contains(said, "stopped partitions"); {
		said = fmt.Sprint(m.await("retry", 0).Err)
	}
	w.Exec(t, "ALTER TABLE "+w.Relation("away")+" RENAME TO stops")
	w.awaitWritten(0, "setup at 0")
}

// A zombie that stops behind the next takeover says nothing about it, and takes
// nothing over.
func TestAStopOfAnOldClaimIsNotWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.reads(1, 0, 10)
	claim := m.held(0).Claim
	next := stream.UUID{9}
	w.set(0, "owner = '"+next.String()+"'")
	m.group.Stop(claim, rebalance.Cause{Code: "setup", Text: "no table"})
	m.group.Stop(m.held(1).Claim, rebalance.Cause{Code: "setup", Text: "no table"})
	w.awaitWritten(1, "setup") // the same round
	w.Exec(t, "DELETE FROM "+w.Relation("stops")+" WHERE partition = 1")
	m.await("decided", 1) // the next one
	m.reads(1, 0, 10)
	if got := w.written(0); got != "" {
		t.Errorf("written: %s", got)
	}
	if got := w.row(0).Owner; got != next {
		t.Errorf("taken over by %s", got)
	}
}

// A partition whose position is missing is written down too, and goes on once it is
// there.
func TestAMissingPositionIsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	w.Exec(t, "DELETE FROM "+w.Relation("positions")+" WHERE partition = 1")
	m := w.join(w.config())
	w.awaitWritten(1, "missing_position at none")
	w.Exec(t, "INSERT INTO "+w.Relation("positions")+" (pipeline, topic_id, partition, next_offset, generation) VALUES ($1, $2, 1, 4, $3)",
		w.id, [16]byte(w.topic.ID), gen)
	m.reads(1, 4, 10)
	w.awaitWritten(1, "")
}

// B08: with on_out_of_range: accept_loss the member decides by itself: at the log's
// start, by a decision that is written down, never at the end.
func TestPolicyAcceptsALoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2, 50)
	if err := w.fake.DeleteRecords(topic, 0, 5); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.OnOutOfRange = rebalance.AcceptLoss
	m := w.join(cfg)
	accepted := m.await("accepted_loss", 0)
	if c := accepted.Cause; c.Lost != (rebalance.Range{From: 2, To: 5}) || !strings.Contains(c.Text, "offsets 2 to 4 are gone") {
		t.Errorf("%s %v", c, c.Lost)
	}
	m.reads(0, 5, 10)
	m.await("takeover", 1)
	w.produce(1, 3)
	m.reads(1, 10, 13) // the position lay beyond the end
	if got := w.decisions(); got != "accept_loss, policy on_out_of_range: accept_loss; accept_loss, policy on_out_of_range: accept_loss" {
		t.Errorf("decisions: %s", got)
	}
}

// With on_truncated: rewind the member goes on where the logs part, at the first
// takeover and after a wait.
func TestPolicyRewindsATruncation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 8)
	w.set(0, "leader_epoch = 0")
	w.truncatedTo(5)
	cfg := w.config()
	cfg.OnTruncated, cfg.OnOutOfRange = rebalance.Rewind, rebalance.Halt
	m := w.join(cfg)
	m.await("accepted_loss", 0)
	m.reads(0, 5, 10)
	if got := w.decisions(); got != "accept_loss, policy on_truncated: rewind" {
		t.Errorf("decisions: %s", got)
	}
}

// Where records without a key are known by their offsets, those behind a cut would be
// taken for those that were there before: no policy goes back, only forward.
func TestNoPolicyGoesBackOverRecordsKnownByTheirOffset(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 2, 50)
	if err := w.fake.DeleteRecords(topic, 0, 5); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	cfg.OnOutOfRange, cfg.ByOffset = rebalance.AcceptLoss, true
	m := w.join(cfg)
	m.reads(0, 5, 10)
	w.awaitWritten(1, "out_of_range at 50: the position 50 lies beyond the log, which is [0, 10)")
	if next := w.row(1).Next; next != 50 {
		t.Errorf("moved to %d", next)
	}
}

// A decision took the position back: the group's own commit is ahead up to where it
// was, and means nothing. Beyond that the database went back all the same.
func TestMirrorBehindADecision(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		at   int64
		stop bool
	}{{8, false}, {9, true}} {
		for _, locked := range []bool{false, true} {
			w := newWorld(t, 1, 8)
			w.decide(0, 3)
			w.commit(pipeline, 0, c.at, ours)
			free := func() {}
			if locked {
				tx := w.lock(w.session("other"), 0)
				free = func() { tx.Rollback(t.Context()) }
			}
			m := w.join(w.config())
			if locked {
				m.await("waiting", 0)
			}
			free()
			if c.stop {
				e := m.stopped(0, "mirror_ahead")
				if !strings.Contains(e.Cause.Fix, "processor partitions resolve orders/0 --rewind-to 3") {
					t.Errorf("%s", e.Cause)
				}
			} else {
				m.reads(0, 3, 10)
			}
			m.stop()
		}
	}
}
