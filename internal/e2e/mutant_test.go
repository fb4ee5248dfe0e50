package e2e

import (
	"slices"
	"testing"
)

// mutants are the safeguards that can be switched off, each with a history in
// which it is what saves the promise, and the checks that must see it missing.
var mutants = []struct {
	name  string
	fence string // the fence's SQL, by which a batch is held
	key   string
	scope string
	plan  []string // before the duel
	kills []string
}{
	// A position alone guards a pipeline without keys; with keys the log's compare
	// is a second line, and only the chain of audit rows shows the breach.
	{"no-fence", unfencedSQL, "coordinates", "partition", nil, []string{doubled, reordered, chain}},
	{"no-fence", unfencedSQL, "event_id", "partition", nil, []string{chain}},
	{"learn-early", fenceSQL, "event_id", "partition", []string{"cut before COMMIT"}, []string{lost}},
	// In scope topic members race, for a key and for the log. The lock alone is not
	// missed: append_runs compares the head once more.
	{"learn-blind", fenceSQL, "event_id", "topic", []string{"cut before COMMIT"}, []string{doubled}},
	{"ignore-overtaken", fenceSQL, "event_id", "topic", []string{"cut before COMMIT"}, []string{doubled}},
}

// unfencedSQL is what a mutant without a fence sends in its place.
const unfencedSQL = "WITH moved AS"

// The history that is exact with every safeguard in place is seen to be broken
// when one of them is gone.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, c := range mutants {
		t.Run(c.name+", key "+c.key+", scope "+c.scope, func(t *testing.T) {
			t.Parallel()
			h := history{71, 8_000, c.plan, fenceSQL}
			w := newWorld(t, 8, h.seed)
			w.key = c.key
			w.scatter(c.scope)
			w.mustBe(w.play(h))

			h.fence = c.fence
			w = newWorld(t, 8, h.seed)
			w.scatter(c.scope)
			w.key, w.binary, w.env = c.key, mutated, []string{"EFFECTONCE_MUTANT=" + c.name}
			when, found := w.play(h)
			t.Logf("%s: killed by %v, the first: %v", when, classes(found), found[:min(1, len(found))])
			for _, class := range c.kills {
				if !slices.Contains(classes(found), class) {
					t.Errorf("the checker does not see it as %s", class)
				}
			}
		})
	}
}
