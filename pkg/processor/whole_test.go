package processor_test

import (
	"fmt"
	"regexp"
	"testing"
)

// A whole topic comes again, long after its keys were sealed, in a process that has
// no filter at first: segments are held whole while the repeats walk through them,
// within dedup.memory, and none of the repeats has an effect.
func TestAReplayIsAnsweredFromMemory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	w.cfg.DedupMemory, w.cfg.BatchRecords = 1<<20, 500
	var ids []string
	for i := range 40_000 {
		ids = append(ids, fmt.Sprintf("o%d", i))
	}
	w.produce(t, ids...)
	sealed := func() bool {
		return w.count(t, "SELECT coalesce(sum(keys), 0)::bigint FROM "+w.db.Relation("segments")+" WHERE state = 'live'") > 20_000
	}
	w.run(t, func() bool { return w.at(t, 40_000)() && sealed() })
	held := regexp.MustCompile(`(?m)^effectonce_view_whole_bytes [1-9]`)
	seen, rounds := false, 1
	for !seen && rounds < 5 { // a machine that stalls may be through before anything was read
		w.produce(t, ids...)
		rounds++
		w.run(t, func() bool {
			seen = seen || held.MatchString(w.get("/metrics"))
			return w.at(t, int64(40_000*rounds))()
		})
	}
	if !seen {
		t.Error("nothing was held whole")
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 40_000 {
		t.Errorf("%d effects of 40,000 keys", n)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 40_000 {
		t.Errorf("%d keys", n)
	}
}
