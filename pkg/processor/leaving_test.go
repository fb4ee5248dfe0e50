package processor_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"effectonce/pkg/processor"
)

// A member that was told to stop dropped what it had polled and left: for as long as
// the group needs to hear of it and to give its partitions out nobody committed for
// them. It goes on until it is taken over; alone, until it has nothing left.
func TestWhoLeavesGoesOnWithWhatItHas(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.BatchRecords, w.cfg.Committers = 50, 1
	ids := make([]string, 500)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	w.produce(t, ids...)
	positions := "SELECT coalesce(sum(next_offset), 0) FROM " + w.db.Relation("positions")
	w.run(t, func() bool { return w.count(t, positions) > 0 })
	if n := w.count(t, positions); n != 500 {
		t.Errorf("it left at %d", n)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 500 {
		t.Errorf("%d rows", n)
	}
}

// Two members, and the one that works leaves: what both commit is each record once,
// and the fence ended what the first had left.
func TestHandOverIsExact(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.cfg.BatchRecords, w.cfg.Committers = 20, 2
	ids := make([]string, 20_000)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	w.produce(t, ids...)
	positions := "SELECT coalesce(sum(next_offset), 0) FROM " + w.db.Relation("positions")
	first, second, log := *w, *w, &lines{}
	first.cfg.Logger = zerolog.New(log)
	first.cfg.Postgres, second.cfg.Postgres = w.cfg.Postgres.Copy(), w.cfg.Postgres.Copy()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, first.cfg) }()
	second.run(t, func() bool {
		if w.count(t, "SELECT count(DISTINCT owner) FROM "+w.db.Relation("audit")) > 4 { // both have committed
			stop()
		}
		return w.count(t, positions) == 20_000
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 20_000 {
		t.Errorf("%d rows", n)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 20_000 {
		t.Errorf("%d orders", n)
	}
	if strings.Contains(log.String(), "stale claim") || strings.Contains(log.String(), "ended_backend") {
		t.Errorf("the hand-over was a conflict:\n%s", log.String())
	}
}
