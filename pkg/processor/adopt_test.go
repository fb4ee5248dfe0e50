package processor_test

import (
	"errors"
	"strings"
	"testing"

	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
)

// A pipeline whose database or Kafka cluster is another one refuses to run until
// somebody vouches for it, which is written down.
func TestAMovedPipelineIsAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(t, "a")
	w.run(t, w.at(t, 1))
	pipelines := w.db.Relation("pipelines")
	for column, refused := range map[string]error{"system_identifier": offsets.ErrOtherDatabase, "cluster_id": offsets.ErrOtherCluster} {
		w.db.Exec(t, "UPDATE "+pipelines+" SET "+column+" = '4711'")
		err := processor.Run(t.Context(), w.cfg)
		if !errors.Is(err, refused) || !strings.Contains(err.Error(), "processor pipeline adopt") {
			t.Errorf("%s: %v", column, err)
		}
		if a, err := processor.Adopt(t.Context(), w.cfg, false, "r"); err != nil || a.Empty() {
			t.Errorf("%s: plan %+v, %v", column, a, err)
		}
		if _, err := processor.Adopt(t.Context(), w.cfg, true, ""); !errors.Is(err, processor.ErrReason) {
			t.Errorf("%s: adopted without a reason: %v", column, err)
		}
		if n := w.count(t, "SELECT count(*) FROM "+pipelines+" WHERE "+column+"::text = '4711'"); n != 1 {
			t.Fatalf("%s: adopted by looking", column)
		}
		a, err := processor.Adopt(t.Context(), w.cfg, true, "restored")
		if err != nil || a.Empty() {
			t.Errorf("%s: %+v, %v", column, a, err)
		}
		if a, err = processor.Adopt(t.Context(), w.cfg, true, "again"); err != nil || !a.Empty() {
			t.Errorf("%s: a second time: %+v, %v", column, a, err)
		}
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+" WHERE kind = 'adopt' AND reason = 'restored' AND topic_id IS NULL"); n != 2 {
		t.Errorf("%d decisions, want 2", n)
	}
	w.produce(t, "b", "a")
	w.run(t, w.at(t, 3))
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
}
