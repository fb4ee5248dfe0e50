package rebalance_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// TestTakesOver: an assignment becomes claims at Postgres's positions, whatever the
// group has committed.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 0, 4, 10)
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.reads(1, 4, 10)
	for n := range int32(3) {
		h := m.held(n)
		row := w.row(n)
		if h.State != rebalance.Running || h.Claim.Owner != row.Owner || h.Claim.Next != row.Next || row.Holder != "here/1" || h.Claim.Epoch != 1 {
			t.Errorf("partition %d: held %+v, row %+v", n, h, row)
		}
		if row.Owner[6]>>4 != 4 {
			t.Errorf("owner %s is no uuid of version 4", row.Owner)
		}
	}
	w.produce(2, 3)
	m.reads(2, 10, 13)
}

// TestLockedRow: the old owner's transaction is in flight. The partition waits,
// paused, while the others run; what the old owner commits is not read again, and
// nothing behind it is skipped.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	old := w.session("old")
	claim := w.claim(old, 0)
	var xact string
	tx, err := pgtx.Begin(t.Context(), old, patient,
		w.store.Fence(w.id, []offsets.Advance{{Claim: claim, Generation: gen, To: 6, LeaderEpoch: -1}}, &xact))
	if err != nil {
		t.Fatal(err)
	}
	m := w.join(w.config())
	if e := m.await("waiting", 0); e.Cause.Code != "locked" || !strings.Contains(e.Cause.Text, "old/1") {
		t.Errorf("%+v", e.Cause)
	}
	m.reads(1, 0, 10)
	if h := m.held(0); h.State != rebalance.Waiting {
		t.Errorf("%+v", h)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := m.await("takeover", 0); e.Claim.Next != 6 || e.Claim.Epoch != 2 {
		t.Errorf("%+v", e.Claim)
	}
	m.reads(0, 6, 10)
	if h := m.held(0); h.State != rebalance.Running || h.Claim.Owner != w.row(0).Owner || w.row(0).Owner == claim.Owner {
		t.Errorf("held %+v, row %+v", h, w.row(0))
	}
}

// claim takes partition n over as another process.
func (w *world) claim(conn *pgx.Conn, n int32) stream.Claim {
	w.t.Helper()
	answers, err := w.store.Takeover(w.t.Context(), conn, patient, w.id, "old/1",
		[]offsets.Taking{{Claim: stream.Claim{Partition: w.part(n), TopicName: topic, Owner: stream.UUID{0x0f, byte(n)}}, Generation: gen}}, true)
	if err != nil || answers[0].Outcome != offsets.Taken {
		w.t.Fatal(answers, err)
	}
	return answers[0].Claim
}

// stuck is a reader that never ends until it is let go.
type stuck struct{ until chan struct{} }

func (s stuck) Read([]byte) (int, error) {
	<-s.until
	return 0, io.EOF
}

// TestEndsZombie: a process of ours froze in the middle of a COPY with the position
// locked. No timeout of the server ends that; the takeover does.
func TestEndsZombie(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 0)
	cfg := w.config()
	cfg.Grace = 10 * time.Millisecond
	zombie := w.session(cfg.Sessions + "zombie")
	tx := w.lock(zombie, 0)
	table := w.Table(t, "effects", "id bigint")
	s := stuck{make(chan struct{})}
	ended := make(chan error, 1)
	go func() {
		_, err := tx.Copy(t.Context(), "COPY "+table+" FROM STDIN", s)
		ended <- err
	}()
	m := w.join(cfg)
	if e := m.await("ended_backend", 0); e.Cause.Code != "zombie" || !strings.Contains(e.Cause.Text, cfg.Sessions+"zombie") {
		t.Errorf("%+v", e.Cause)
	}
	m.await("takeover", 0)
	m.reads(0, 0, 10)
	close(s.until)
	if err := <-ended; pgtx.Code(err) != "57P01" {
		t.Errorf("the zombie heard %v, want admin_shutdown", err)
	}
}

// TestNamesForeigner: a session that is not this pipeline's is named and never
// ended, also if its name begins almost like ours.
func TestNamesForeigner(t *testing.T) {
	t.Parallel()
	for _, application := range []string{"psql", "effectonce:0", ""} {
		w := newWorld(t, 1, 0)
		cfg := w.config()
		cfg.Grace = time.Millisecond
		if application == "effectonce:0" { // pipeline 10 is not pipeline 1
			application = strings.TrimSuffix(cfg.Sessions, ":") + "0:x"
		}
		foreign := w.session(application)
		tx := w.lock(foreign, 0)
		m := w.join(cfg)
		deadline := time.NewTimer(limit)
		for named := false; !named; {
			select {
			case e := <-m.events:
				if e.Kind == "ended_backend" {
					t.Fatalf("%q was ended", application)
				}
			case <-deadline.C:
				t.Fatalf("%q is not named: %+v", application, m.group.Held())
			case <-time.After(10 * time.Millisecond):
			}
			for _, h := range m.group.Held() {
				named = named || h.State == rebalance.Waiting && strings.Contains(h.Cause.Text, application+`", idle in transaction`)
			}
		}
		deadline.Stop()
		if err := tx.Commit(t.Context()); err != nil { // it lives
			t.Errorf("%q: %v", application, err)
		}
		m.await("takeover", 0)
		m.reads(0, 0, 10)
		m.stop()
	}
}

// TestFencedRetakes: another process takes the row again and again though Kafka
// says the partition is ours. Each time under a new owner; then stop, and say who.
func TestFencedRetakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	m := w.join(w.config())
	other := w.session("other")
	seen := map[stream.UUID]bool{}
	for range rebalance.Retakes + 1 {
		claim := m.await("takeover", 0).Claim
		m.reads(0, 2, 10)
		if seen[claim.Owner] {
			t.Error("a fenced claim came back under its owner")
		}
		seen[claim.Owner] = true
		w.claim(other, 0)
		m.group.Fenced(t.Context(), claim.Owner, false)
		m.group.Fenced(t.Context(), claim.Owner, false) // the watch finds it too
		m.group.Hurry()
	}
	e := m.stopped(0, "held_elsewhere")
	if !strings.Contains(e.Cause.Text, "old/1") {
		t.Errorf("the holder is not named: %s", e.Cause)
	}
	if len(seen) != rebalance.Retakes+1 {
		t.Errorf("%d takeovers", len(seen))
	}
	m.group.Hurry()
	if h := m.held(0); h.State != rebalance.Stopped {
		t.Errorf("%+v", h)
	}
}

// TestFencedWaits: a member that was fenced does not take the row back at once,
// unless the database went back and nobody else is known to hold it.
func TestFencedWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	m := w.join(w.config())
	claim := m.await("takeover", 0).Claim
	other := w.claim(w.session("other"), 0)
	m.group.Fenced(t.Context(), claim.Owner, false)
	if h := m.held(0); h.State != rebalance.Waiting || h.Cause.Code != "fenced" || h.Claim.Owner == claim.Owner {
		t.Errorf("%+v", h)
	}
	if owner := w.row(0).Owner; owner != other.Owner {
		t.Errorf("the row was taken at once by %s", owner)
	}
	m.group.Hurry()
	claim = m.await("takeover", 0).Claim
	m.reads(0, 2, 10)
	w.set(0, "next_offset = 1") // and the owner is still ours
	m.group.Stop(stream.Claim{Owner: stream.UUID{1}}, rebalance.Cause{Code: "other"})
	m2 := w.member(w.config())
	m2.group.Fenced(t.Context(), claim.Owner, true) // not held there
	if h := m.held(0); h.State != rebalance.Running {
		t.Errorf("%+v", h)
	}
}

// TestFencedAtOnce: whether the first wait is skipped.
func TestFencedAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	m := w.member(w.config())
	if _, err := m.group.Adjust(t.Context(), map[string]map[int32]kgo.Offset{topic: {0: {}, 1: {}}}); err != nil {
		t.Fatal(err)
	}
	for n := range int32(2) {
		m.group.Fenced(t.Context(), m.held(n).Claim.Owner, n == 0)
		if due := m.group.Due(name(n)); due != (n == 0) {
			t.Errorf("partition %d: due at once %v", n, due)
		}
	}
}

// TestWentBack: the database lost the tail of this partition. It is read again
// from the position that is left, without a wait.
func TestWentBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 5)
	m := w.join(w.config())
	claim := m.await("takeover", 0).Claim
	m.reads(0, 5, 10)
	w.set(0, "next_offset = 1")
	m.group.Fenced(t.Context(), claim.Owner, true)
	if again := m.await("takeover", 0).Claim; again.Next != 1 || again.Owner == claim.Owner {
		t.Errorf("%+v", again)
	}
	m.reads(0, 1, 10)
}

// A fenced member waits so that a zombie hears from Kafka first. Whoever is given the
// partition anew meanwhile has heard, and does not wait.
func TestFencedAndAssignedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 2)
	m := w.join(w.config())
	claim := m.await("takeover", 0).Claim
	w.claim(w.session("other"), 0)
	m.group.Fenced(t.Context(), claim.Owner, false)
	if m.group.Due(rebalance.Name{Topic: topic, Number: 0}) {
		t.Error("it takes over at once")
	}
	if _, err := m.group.Adjust(t.Context(), map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(2)}}); err != nil {
		t.Fatal(err)
	}
	if again := m.await("takeover", 0).Claim; again.Owner == claim.Owner || again.Epoch != 3 {
		t.Errorf("%+v", again)
	}
}

// TestStoppedStays: a partition stopped for a cause is not brought back by a
// transaction that was in flight and is fenced, nor by what was known of an older
// claim.
func TestStoppedStays(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 0)
	m := w.join(w.config())
	claim := m.await("takeover", 0).Claim
	m.reads(0, 0, 10)
	m.group.Stop(claim, rebalance.Cause{Code: "partitioner"})
	m.stopped(0, "partitioner")
	m.client.ResumeFetchPartitions(map[string][]int32{topic: {0}}) // a resume that was under way
	m.group.Fenced(t.Context(), claim.Owner, true)
	m.group.Stop(claim, rebalance.Cause{Code: "second"})
	m.group.Hurry()
	m.reads(1, 0, 10)
	if h := m.held(0); h.State != rebalance.Stopped || h.Cause.Code != "partitioner" {
		t.Errorf("%+v", h)
	}
	if paused := m.client.PauseFetchPartitions(nil); len(paused[topic]) != 1 {
		t.Errorf("paused %v", paused)
	}

	old := m.held(1).Claim.Owner
	m.group.Fenced(t.Context(), old, true)
	m.group.Stop(stream.Claim{Owner: old}, rebalance.Cause{Code: "late"}) // of the claim before
	m.await("takeover", 1)
	if h := m.held(1); h.State != rebalance.Running {
		t.Errorf("%+v", h)
	}
}

// TestResumedSession: the client asks again for partitions of a cancelled session.
// A claim that stands or is under way keeps its owner: nobody may be fenced by a
// repeated question.
func TestResumedSession(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 1, 2, 3)
	m := w.member(w.config())
	w.lock(w.session("other"), 1)
	ask := func() map[string]map[int32]kgo.Offset {
		got, err := m.group.Adjust(t.Context(), map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtEnd(), 1: {}, 2: {}}})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := ask()
	before := m.group.Held()
	second := ask()
	after := m.group.Held()
	for n := range int32(3) {
		if before[n].Claim != after[n].Claim || before[n].State != after[n].State {
			t.Errorf("partition %d: %+v, then %+v", n, before[n], after[n])
		}
		for _, answer := range []map[string]map[int32]kgo.Offset{first, second} {
			if o := answer[topic][n].EpochOffset(); o.Offset != int64(n)+1 {
				t.Errorf("partition %d starts at %d", n, o.Offset)
			}
		}
	}
	if before[1].State != rebalance.Waiting || w.row(0).Owner != before[0].Claim.Owner {
		t.Errorf("%+v", before)
	}
	// Dropped and assigned again is another claim.
	m.group.Dropped(map[string][]int32{topic: {0, 1, 2}})
	if len(m.group.Held()) != 0 || len(m.drops) != 3 {
		t.Errorf("%d held, %d dropped", len(m.group.Held()), len(m.drops))
	}
	ask()
	if again := m.group.Held(); again[0].Claim.Owner == before[0].Claim.Owner || again[0].Claim.Epoch != 2 {
		t.Errorf("%+v", again[0])
	}
}

// TestCallbacksReturn: neither a locked row nor a database that is gone or silent
// holds up the client. All partitions are answered, and come when the trouble ends.
func TestCallbacksReturn(t *testing.T) {
	t.Parallel()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = silent.Close() }() // nothing to lose
	w := newWorld(t, 2, 1, 2)
	for name, dsn := range map[string]string{
		"silent": "postgres://nobody@" + silent.Addr().String() + "/x?sslmode=disable",
		"gone":   "postgres://nobody@127.0.0.1:1/x?sslmode=disable",
	} {
		cfg := w.config()
		pool, err := pgxpool.New(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Control = pool
		m := w.member(cfg)
		returned := make(chan map[string]map[int32]kgo.Offset, 1)
		go func() {
			got, err := m.group.Adjust(t.Context(), map[string]map[int32]kgo.Offset{topic: {0: {}, 1: {}}})
			if err != nil {
				t.Error(err)
			}
			m.group.Dropped(map[string][]int32{topic: {0}})
			returned <- got
		}()
		select {
		case got := <-returned:
			if len(got[topic]) != 2 {
				t.Errorf("%s: %v", name, got)
			}
		case <-time.After(20 * time.Second): // ten times the bound of a takeover
			t.Fatalf("%s: the callback waits", name)
		}
		if h := m.held(1); h.State != rebalance.Waiting || h.Cause.Code != "takeover" {
			t.Errorf("%s: %+v", name, h)
		}
		pool.Close()
	}
}

// TestDatabaseComesBack: it did not answer when the partitions were assigned. They
// wait, paused at an offset that may not even exist, and then start where they should.
func TestDatabaseComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 7)
	if err := w.fake.DeleteRecords(topic, 0, 5); err != nil {
		t.Fatal(err)
	}
	cfg := w.config()
	refuse := make(chan struct{})
	pool := cfg.Control.Config()
	pool.BeforeConnect = nil
	pool.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		select {
		case <-refuse:
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		default:
			return nil, net.ErrClosed
		}
	}
	down, err := pgxpool.NewWithConfig(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(down.Close)
	cfg.Control = down
	m := w.join(cfg)
	if e := m.await("waiting", 0); e.Cause.Code != "takeover" {
		t.Errorf("%+v", e)
	}
	m.await("retry", 0)
	close(refuse)
	if e := m.await("takeover", 0); e.Claim.Next != 7 {
		t.Errorf("%+v", e.Claim)
	}
	m.reads(0, 7, 10)
}
