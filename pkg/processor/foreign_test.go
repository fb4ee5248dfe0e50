package processor_test

import (
	"fmt"
	"testing"
)

// Somebody else changes the log's segments under a busy partition. The view knows
// all keys itself and never asks, so its own next seal is what finds out: the view
// is loaded again, and sealing goes on.
func TestABusyPartitionNoticesForeignSegments(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.DedupMemory, w.cfg.BatchRecords, w.cfg.Committers = 2, 20, 1
	var ids []string
	for i := range 10_000 {
		ids = append(ids, fmt.Sprintf("o%d", i))
	}
	w.produce(t, ids...)
	positions := "SELECT coalesce(sum(next_offset), 0)::bigint FROM " + w.db.Relation("positions")
	segments := "SELECT count(*) FROM " + w.db.Relation("segments") + " WHERE state = "
	sealed := "SELECT sum(sealed)::bigint FROM " + w.db.Relation("logs")
	before := int64(-1)
	w.run(t, func() bool {
		if before < 0 && w.count(t, positions) > 400 {
			if _, err := w.db.Owner.Exec(t.Context(), "UPDATE "+w.db.Relation("logs")+" SET manifest = gen_random_uuid()"); err != nil {
				t.Fatal(err)
			}
			before = w.count(t, sealed)
		}
		return w.count(t, positions) == int64(len(ids))
	})
	if n := w.count(t, sealed); n == before {
		t.Errorf("nothing was sealed behind run %d", before)
	}
	if n := w.count(t, segments+"'building'"); n > 0 {
		t.Errorf("%d segments were left building", n)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != int64(len(ids)) {
		t.Errorf("%d effects of %d keys", n, len(ids))
	}
}
