package processor_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"effectonce/pkg/offsets"
	"effectonce/pkg/processor"
)

// A pipeline configured with another key than its rows were made for joined the
// group and stopped every partition. It is refused before, and told what it was made
// with.
func TestAnotherKeyRuleIsRefusedAtTheStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(t, "a", "b", "c")
	w.run(t, w.at(t, 3))
	made := w.cfg
	for says, change := range map[string]func(*processor.Config){
		"made with key order_id, configured is customer":                   func(c *processor.Config) { c.Key = []string{"customer"} },
		"made with key order_id, configured is order_id + header:source":   func(c *processor.Config) { c.Key = []string{"order_id", "header:source"} },
		"made with key order_id, configured is coordinates":                func(c *processor.Config) { c.Key = nil },
		"made with key_missing dead_letter, configured is coordinates":     func(c *processor.Config) { c.KeyMissing = processor.KeyCoordinates },
		"the pipeline was made for another configuration: made with key o": func(c *processor.Config) { c.Key = []string{"kafka:key"} },
	} {
		w.cfg = made
		change(&w.cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := processor.Run(ctx, w.cfg)
		cancel()
		if !errors.Is(err, processor.ErrGeneration) || !strings.Contains(err.Error(), says) {
			t.Errorf("%v, want %q", err, says)
		}
	}
	w.cfg = made
	w.cfg.Key = []string{"/order_id"} // the same source, written otherwise
	w.produce(t, "a", "d")
	w.run(t, w.at(t, 5))
	w.exact(t, 4)
	if n := w.count(t, "SELECT sum(epoch) FROM "+w.db.Relation("positions")); n != 4 {
		t.Errorf("%d claims, want 2 of each run that was not refused", n)
	}
}

// What operations.md advises where a topic grew: a new pipeline name that goes on
// from the old one's group offsets. It begins with an empty memory.
func TestANewPipelineGoesOnFromTheOldOnesGroup(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.produce(t, "a", "b", "c")
	w.run(t, w.at(t, 3))
	w.cfg.Pipeline, w.cfg.Group, w.cfg.Start.Kind = "orders2", "orders", "committed"
	err := processor.Run(t.Context(), w.cfg)
	if !errors.Is(err, offsets.ErrTaken) || !strings.HasPrefix(err.Error(), `pipeline "orders2": another pipeline`) {
		t.Errorf("without --share: %v", err)
	}
	w.cfg.Share = true
	w.produce(t, "d", "a")
	w.run(t, w.at(t, 3+5)) // both pipelines' positions
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 5 {
		t.Errorf("%d rows, want those of the first and, with nothing remembered, two more", n)
	}
}
