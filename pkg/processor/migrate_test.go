package processor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
	"effectonce/pkg/stream"
)

func (w *world) migrate(t *testing.T, m processor.Migration) (processor.Plan, error) {
	t.Helper()
	return processor.Migrate(t.Context(), w.cfg, m)
}

// refused fails unless the pipeline refuses to start under the configuration at hand.
func (w *world) refused(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := processor.Run(ctx, w.cfg)
	if !errors.Is(err, processor.ErrGeneration) || !strings.Contains(err.Error(), "processor pipeline migrate") {
		t.Errorf("%v", err)
	}
}

// samePlan compares what people see of a plan.
func samePlan(t *testing.T, got processor.Plan, want ...processor.TopicPlan) {
	t.Helper()
	if diff := cmp.Diff(want, got.Topics, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
}

func partitions(n int32) processor.TopicState {
	return processor.TopicState{Scope: stream.ScopePartition, Partitions: n}
}

// Two key rules take turns on a pipeline. Each refuses to start while the rows are the
// other's; what one has applied, the other does not know, which is why it must be
// permitted.
func TestTwoKeyRulesDoNotMix(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(t, "a", "b", "c")
	w.run(t, w.at(t, 3))
	order, both := w.cfg, w.cfg
	both.Key = []string{"order_id", "amount"}

	w.cfg = both
	w.refused(t)
	plan, err := w.migrate(t, processor.Migration{})
	if err != nil || !plan.Forgets() || plan.Empty() || !strings.Contains(plan.From, "key order_id,") || !strings.Contains(plan.To, "key order_id + amount,") {
		t.Errorf("%+v, %v", plan, err)
	}
	samePlan(t, plan, processor.TopicPlan{Topic: w.topic, From: partitions(2), To: partitions(2), Keys: 3})
	if _, err := w.migrate(t, processor.Migration{Apply: true}); !errors.Is(err, processor.ErrForgets) {
		t.Errorf("without a permission: %v", err)
	}
	w.refused(t) // a plan changes nothing
	if _, err := w.migrate(t, processor.Migration{Apply: true, Forget: true, Reason: "amounts matter"}); err != nil {
		t.Fatal(err)
	}
	if plan, err := w.migrate(t, processor.Migration{Apply: true}); err != nil || !plan.Empty() {
		t.Errorf("again: %+v, %v", plan, err)
	}
	w.produce(t, "a", "a") // amounts 0, as the first time, and 1
	w.run(t, w.at(t, 5))
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 3+2 {
		t.Errorf("%d rows: the first a was forgotten, the second is another key", n)
	}

	w.cfg = order
	w.refused(t)
	if _, err := w.migrate(t, processor.Migration{Apply: true, Forget: true}); err != nil {
		t.Fatal(err)
	}
	w.produce(t, "a", "a")
	w.run(t, w.at(t, 7))
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 5+1 {
		t.Errorf("%d rows: one more a", n)
	}
	w.cfg = both
	w.refused(t)
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+" WHERE kind = 'change' AND detail ->> 'kept' = 'false'"); n != 2 {
		t.Errorf("%d decisions", n)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.db.Relation("decisions")+" WHERE reason = 'amounts matter' AND detail ->> 'keys' = '3'"); n != 1 {
		t.Errorf("%d decisions with the reason", n)
	}
}

// The key rule stays, only what becomes of a record without the key is another: the
// keys mean the same and are kept, through segments too.
func TestKeysThatMeanTheSameAreKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(t, "a", "b", "c", "d")
	w.run(t, w.at(t, 4))
	w.cfg.KeyMissing = processor.KeyCoordinates
	w.refused(t)
	plan, err := w.migrate(t, processor.Migration{Apply: true})
	if err != nil {
		t.Fatal(err)
	}
	samePlan(t, plan, processor.TopicPlan{Topic: w.topic, From: partitions(2), To: partitions(2), Keys: 4, Kept: true})
	w.produce(t, "a", "b", "c", "d", "e")
	w.run(t, w.at(t, 9))
	w.exact(t, 5)
}

// A member of the old configuration runs while the pipeline is changed: it stops
// visibly, commits nothing any more, and names what happened.
func TestMembersOfTheOldRuleStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	w.produce(t, "a", "b", "c")
	ready := w.at(t, 3)
	next := w.cfg
	next.Key = []string{"amount"}
	migrated := false
	w.run(t, func() bool {
		if !ready() {
			return false
		}
		if !migrated {
			migrated = true
			if _, err := processor.Migrate(t.Context(), next, processor.Migration{Apply: true, Forget: true}); err != nil {
				t.Error(err)
			}
			w.produce(t, "d", "e", "f")
		}
		return strings.Count(w.get("/readyz?verbose"), "generation: ") >= 2
	})
	if !w.at(t, 3)() {
		t.Error("the old rule committed behind the change")
	}
	w.cfg = next
	w.run(t, w.at(t, 6))
}

func TestMigrateRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	if _, err := w.migrate(t, processor.Migration{Apply: true}); !errors.Is(err, offsets.ErrNoPipeline) {
		t.Errorf("%v", err)
	}
	w.produce(t, "a")
	w.run(t, w.at(t, 1))
	w.db.Exec(t, "UPDATE "+w.db.Relation("pipelines")+" SET cluster_id = 'other'")
	w.cfg.Key = []string{"amount"}
	if _, err := w.migrate(t, processor.Migration{Apply: true, Forget: true}); !errors.Is(err, offsets.ErrOtherCluster) {
		t.Errorf("%v", err)
	}
}
