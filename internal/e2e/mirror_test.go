package e2e

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgproxytest"
)

// mirrors are the group's offsets, which of them are ours, and the positions. The
// offsets are read first: a position only grows meanwhile.
func (w *world) mirrors(ctx context.Context) (group map[int32]kadm.Offset, positions map[int32]int64, err error) {
	committed, err := kadm.NewClient(w.stream.client).FetchOffsets(ctx, w.group)
	if err != nil {
		return nil, nil, err
	}
	group, positions = map[int32]kadm.Offset{}, map[int32]int64{}
	committed.Each(func(o kadm.OffsetResponse) { group[o.Partition] = o.Offset })
	rows, err := w.db.Owner.Query(ctx, "SELECT partition, next_offset FROM "+w.db.Relation("positions"))
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int32
		var next int64
		if err := rows.Scan(&n, &next); err != nil {
			return nil, nil, err
		}
		positions[n] = next
	}
	return group, positions, rows.Err()
}

// The group's offset is marked behind the commit: at no moment is it ahead of the
// position, whenever members are killed or stopped. What it was left behind is made up
// for by whoever takes over, also where no record comes any more: then lag tools show
// none.
func TestTheGroupsOffsetIsNeverAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 91)
	w.start()
	w.start()
	w.balanced()
	watching, end := context.WithCancel(t.Context())
	defer end()
	looks := 0
	var eg errgroup.Group
	eg.Go(func() error {
		tick := time.NewTicker(look)
		defer tick.Stop()
		for ; watching.Err() == nil; <-tick.C {
			group, positions, err := w.mirrors(t.Context())
			if err != nil {
				return err
			}
			for n, o := range group {
				if looks++; o.At > positions[n] {
					t.Errorf("partition %d: the group's offset is %d, the position %d", n, o.At, positions[n])
				}
			}
		}
		return nil
	})
	rng := rand.New(rand.NewPCG(91, 1))
	for i := range 2 {
		m := w.members[i%2]
		at := w.progress() + 500 + rng.Int64N(2_000)
		w.produce(4_000, func() {
			w.await("the moment", func() bool { return w.progress() >= at })
			if i == 1 {
				if code := m.stop(); code != 0 {
					t.Errorf("exit code %d", code)
				}
			} else {
				m.kill()
			}
			m.start()
		})
	}
	ends := w.drained()
	for _, m := range w.members {
		m.kill() // with whatever it had marked and not committed to Kafka
	}
	w.members[0].start()
	w.await("the group's offsets to follow", func() bool {
		group, positions, err := w.mirrors(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for n, next := range positions {
			if o := group[n]; o.At != next || o.Metadata != "eo1 ledger" {
				return false
			}
		}
		return true
	})
	end()
	if err := eg.Wait(); err != nil {
		t.Fatal(err)
	}
	if looks == 0 {
		t.Error("nobody looked")
	}
	w.exact("drained", ends)
}

// The group's offsets are set to 0 as Kafka's tools do it, and that is honoured. The
// member is killed when Postgres has the decision and Kafka not yet an offset of ours,
// the next one when it has applied on: each reset is decided about once, all records
// are read again once, and no key has a second effect.
func TestAResetIsHonouredOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 92)
	w.extra = "on_external_reset: honour\n"
	m := w.start()
	w.produce(3_000, nil)
	w.drained()
	if code := m.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	read := "SELECT sum(read) FROM " + w.db.Relation("audit")
	before, effects := w.number(read), w.number("SELECT count(*) FROM "+w.effects)
	offsets := kadm.Offsets{}
	for n := range w.partitions {
		offsets.Add(kadm.Offset{Topic: w.topic, Partition: n, LeaderEpoch: -1})
	}
	if err := kadm.NewClient(w.stream.client).CommitAllOffsets(t.Context(), w.group, offsets); err != nil {
		t.Fatal(err)
	}
	decisions := "SELECT count(*) FROM " + w.db.Relation("decisions") + " WHERE kind = 'external_reset'"
	m.proxy.Arm(pgproxytest.HoldReply, pgproxytest.Filter{SQL: ".decisions ("})
	m.start()
	m.fired()
	m.kill()
	m.proxy.Release()
	if n := w.number(decisions); n != 1 {
		t.Errorf("%d decisions", n)
	}
	m.start()
	w.await("records to be read again", func() bool { return w.number(read) > before })
	m.kill()
	m.start()
	w.drained()
	if n := w.number(decisions); n != int64(w.partitions) {
		t.Errorf("%d decisions about %d partitions", n, w.partitions)
	}
	if again := w.number(read) - before; again != before {
		t.Errorf("%d records were read again, want %d", again, before)
	}
	if n := w.number("SELECT count(*) FROM " + w.effects); n != effects {
		t.Errorf("%d effects, want %d", n, effects)
	}
}
