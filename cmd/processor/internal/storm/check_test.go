package storm

import (
	"slices"
	"testing"

	"effectonce/cmd/processor/internal/produce"
)

const seed = 7

// keys are the first orders of the seed.
func keys(n int) (all []string) {
	for o := range produce.Orders(seed, 0) {
		if all = append(all, string(o.Key)); len(all) == n {
			break
		}
	}
	return all
}

// world is a topic of two partitions, with repeats and a hole, and the table that
// it should make.
func world() (*ledger, []effect) {
	k := keys(5)
	l := newLedger(seed)
	for _, r := range []struct {
		part   int32
		offset int64
		key    string
	}{{0, 0, k[0]}, {0, 1, k[1]}, {0, 2, k[0]}, {0, 4, k[2]}, {1, 0, k[3]}, {1, 1, k[4]}, {1, 2, k[3]}} {
		if !l.record(r.part, r.offset, r.key) {
			panic("no order")
		}
	}
	return l, []effect{{1, 0, 0, k[0]}, {2, 1, 0, k[3]}, {3, 0, 1, k[1]}, {5, 1, 1, k[4]}, {6, 0, 4, k[2]}}
}

// Every breach of the promise is counted, and nothing else.
func TestTamperedTables(t *testing.T) {
	t.Parallel()
	k := keys(6)
	for name, c := range map[string]struct {
		with func([]effect) []effect
		want Tally
	}{
		"as it should be":     {func(e []effect) []effect { return e }, Tally{Rows: 5}},
		"in another order":    {func(e []effect) []effect { slices.Reverse(e); return e }, Tally{Rows: 5}},
		"empty":               {func([]effect) []effect { return nil }, Tally{Lost: 5}},
		"one gone":            {func(e []effect) []effect { return e[1:] }, Tally{Rows: 4, Lost: 1}},
		"the last one gone":   {func(e []effect) []effect { return e[:4] }, Tally{Rows: 4, Lost: 1}},
		"a record twice":      {func(e []effect) []effect { return append(e, effect{9, 0, 4, k[2]}) }, Tally{Rows: 6, Doubled: 1, Replayed: 1}},
		"a record thrice":     {func(e []effect) []effect { return append(e, e[4], e[4]) }, Tally{Rows: 7, Doubled: 2, Replayed: 2}},
		"a repeat applied":    {func(e []effect) []effect { return append(e, effect{4, 0, 2, k[0]}) }, Tally{Rows: 6, Doubled: 1}},
		"only the repeat":     {func(e []effect) []effect { e[0] = effect{4, 0, 2, k[0]}; return e }, Tally{Rows: 5, Shadowed: 1}},
		"two exchanged":       {func(e []effect) []effect { e[0].seq, e[2].seq = 3, 1; return e }, Tally{Rows: 5, Reordered: 1}},
		"late and again":      {func(e []effect) []effect { return append(e, effect{9, 0, 0, k[0]}) }, Tally{Rows: 6, Doubled: 1, Replayed: 1, Reordered: 2}},
		"never sent":          {func(e []effect) []effect { return append(e, effect{9, 0, 5, k[5]}) }, Tally{Rows: 6, Unknown: 1}},
		"another's record":    {func(e []effect) []effect { e[0].key = k[1]; return e }, Tally{Rows: 5, Lost: 1, Unknown: 1}},
		"from a hole":         {func(e []effect) []effect { e[0].offset = 3; return e }, Tally{Rows: 5, Lost: 1, Unknown: 1}},
		"no such partition":   {func(e []effect) []effect { e[0].part = 2; return e }, Tally{Rows: 5, Lost: 1, Unknown: 1}},
		"without coordinates": {func(e []effect) []effect { e[0].offset = -1; return e }, Tally{Rows: 5, Lost: 1, Unknown: 1}},
		"no key":              {func(e []effect) []effect { e[0].key = ""; return e }, Tally{Rows: 5, Lost: 1, Unknown: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, effects := world()
			check := l.check()
			for _, e := range c.with(effects) {
				check.effect(e)
			}
			got := check.end()
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			sound := got.Lost+got.Doubled+got.Reordered+got.Shadowed+got.Unknown == 0
			if r := (&Result{Tally: got}); (r.verdict() == nil) != sound {
				t.Errorf("verdict: %v", r.verdict())
			}
		})
	}
}

func TestLedgerCounts(t *testing.T) {
	t.Parallel()
	l, _ := world()
	if l.records() != 7 || l.keys() != 5 {
		t.Errorf("%d records, %d keys", l.records(), l.keys())
	}
	if l.record(0, 5, "00000000deadbeef") || l.record(0, 5, "x") {
		t.Error("a key of another seed is taken for an order")
	}
}
