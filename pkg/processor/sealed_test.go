package processor_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

var counted = regexp.MustCompile(`effectonce_lookups_total\{outcome="negative"\} [1-9]`)

// With a memory for hardly any keys, runs are sealed into segments and merged while
// the pipeline works; repeats come from all over the past, in one process and in
// its successor, which begins without a filter.
func TestSealedKeysAreRecognised(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	w.cfg.DedupMemory, w.cfg.BatchRecords = 2, 500
	rng := rand.New(rand.NewPCG(1, 1))
	made, sent := 0, 0
	stream := func(n int) (ids []string) {
		for range n {
			if made > 0 && rng.IntN(5) == 0 {
				ids = append(ids, fmt.Sprintf("o%d", rng.IntN(made)))
				continue
			}
			ids = append(ids, fmt.Sprintf("o%d", made))
			made++
		}
		sent += n
		return ids
	}
	orders := func() int64 { return w.count(t, "SELECT count(*) FROM "+w.orders()) }
	for round := range 3 {
		w.produce(t, stream(20_000)...)
		// All is committed, and nothing is left to clean up.
		w.run(t, func() bool {
			return w.at(t, int64(sent))() && w.count(t, "SELECT count(*) FROM "+w.db.Relation("segments")+" WHERE state = 'live'") > 0 &&
				(round == 0 || strings.Contains(w.get("/metrics"), `effectonce_lookups_total{outcome="confirmed"}`) &&
					counted.MatchString(w.get("/metrics")) &&
					strings.Contains(w.get("/metrics"), "effectonce_view_filter_ready 1"))
		})
		if n := orders(); n != int64(made) {
			t.Fatalf("round %d: %d effects of %d keys", round, n, made)
		}
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != int64(made) {
		t.Errorf("%d keys, want %d", n, made)
	}
	if n := w.count(t, "SELECT coalesce(sum(duplicate), 0)::bigint FROM "+w.db.Relation("audit")); n != int64(sent-made) {
		t.Errorf("%d duplicates in the audit, want %d", n, sent-made)
	}
	if n := w.count(t, "SELECT max(tier) FROM "+w.db.Relation("segments")); n < 1 {
		t.Error("nothing was merged")
	}
}
