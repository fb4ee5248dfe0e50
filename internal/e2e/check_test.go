package e2e

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
)

// sound is a small world in which all is well: two partitions, the second begins
// with a poison record; event e2 comes again with another content.
func sound() facts {
	event := func(n, offset int64) record {
		return record{offset: offset, ledger: ledger{fmt.Sprintf("e%d", n), "a", n, 10 * n}}
	}
	again := event(2, 4)
	again.Delta = -1
	poison := record{offset: 0, poison: true}
	zero := []record{event(0, 0), event(1, 1), event(2, 2), event(3, 3), again, event(5, 7)} // 5 and 6: an aborted transaction
	one := []record{poison, event(10, 1), event(11, 2)}
	f := facts{
		keyed: true, salt: []byte("0123456789abcdef"),
		topic: map[int32][]record{0: zero, 1: one},
		ends:  map[int32]int64{0: 8, 1: 3},
		runs: []run{
			{part: 0, from: 0, to: 2, owner: "x", epoch: 1, read: 2, applied: 2},
			{part: 1, from: 0, to: 3, owner: "z", epoch: 4, read: 3, applied: 2, dead: 1},
			{part: 0, from: 2, to: 5, owner: "x", epoch: 1, read: 3, applied: 2, duplicate: 1},
			{part: 0, from: 5, to: 8, owner: "y", epoch: 2, read: 1, applied: 1},
		},
		positions: map[int32]position{0: {8, 3, "w"}, 1: {3, 4, "z"}},
		letters:   []coordinate{{1, 0}},
	}
	for _, i := range []int{0, 1, 2, 3, 5} {
		f.effects = append(f.effects, effect{zero[i].ledger, 0, zero[i].offset})
	}
	for _, r := range one[1:] {
		f.effects = append(f.effects, effect{r.ledger, 1, r.offset})
	}
	for i := range f.runs {
		r, keys := &f.runs[i], [][]byte(nil)
		for _, e := range f.effects {
			if e.part == r.part && r.from <= e.offset && e.offset < r.to {
				keys = append(keys, fingerprint(f.salt, e.Event))
			}
		}
		slices.SortFunc(keys, bytes.Compare)
		r.keys = bytes.Join(keys, nil)
	}
	return f
}

func TestSoundFactsPass(t *testing.T) {
	t.Parallel()
	if found := check(sound()); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	half := sound()
	half.ends[0], half.topic[0] = 20, append(half.topic[0], record{offset: 19, ledger: ledger{Event: "later"}})
	if found := check(half); len(found) == 0 {
		t.Error("records that wait were not found")
	}
	if found := check(half.upTo()); len(found) > 0 {
		t.Errorf("up to the positions: found %v", found)
	}
}

// Every fact is tampered with in turn; the checker must name the breach.
func TestTamperedFactsFail(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		class  string
		tamper func(*facts)
	}{
		"effect gone":             {lost, func(f *facts) { f.effects = slices.Delete(f.effects, 1, 2) }},
		"last effect gone":        {lost, func(f *facts) { f.effects = f.effects[:len(f.effects)-1] }},
		"effect twice":            {doubled, func(f *facts) { f.effects = append(f.effects, f.effects[0]) }},
		"the copy applied too":    {doubled, func(f *facts) { f.effects = slices.Insert(f.effects, 4, effect{f.topic[0][4].ledger, 0, 4}) }},
		"only the copy applied":   {shadowed, func(f *facts) { f.effects[2] = effect{f.topic[0][4].ledger, 0, 4} }},
		"aborted record applied":  {phantom, func(f *facts) { f.effects = append(f.effects, effect{ledger{"e9", "a", 9, 9}, 0, 5}) }},
		"poison applied":          {phantom, func(f *facts) { f.effects = append(f.effects, effect{ledger{}, 1, 0}) }},
		"other content":           {phantom, func(f *facts) { f.effects[0].Delta++ }},
		"two effects swapped":     {reordered, func(f *facts) { f.effects[0], f.effects[1] = f.effects[1], f.effects[0] }},
		"audit row gone":          {chain, func(f *facts) { f.runs = slices.Delete(f.runs, 2, 3) }},
		"first audit row gone":    {chain, func(f *facts) { f.runs = f.runs[1:] }},
		"last audit row gone":     {chain, func(f *facts) { f.runs = f.runs[:3] }},
		"audit row twice":         {chain, func(f *facts) { f.runs = append(f.runs, f.runs[0]) }},
		"ranges overlap":          {chain, func(f *facts) { f.runs[2].from = 1 }},
		"epoch goes back":         {chain, func(f *facts) { f.runs[0].epoch = 2 }},
		"one epoch, two owners":   {chain, func(f *facts) { f.runs[2].owner = "q" }},
		"nobody's commit":         {chain, func(f *facts) { f.runs[0].epoch = 0 }},
		"read too little":         {miscount, func(f *facts) { f.runs[0].read--; f.runs[0].applied-- }},
		"counts do not add up":    {miscount, func(f *facts) { f.runs[0].duplicate++ }},
		"duplicate as applied":    {miscount, func(f *facts) { f.runs[2].applied++; f.runs[2].duplicate-- }},
		"applied without its key": {torn, func(f *facts) { f.runs[0].keys = f.runs[0].keys[16:] }},
		"another key":             {torn, func(f *facts) { f.runs[0].keys[3]++ }},
		"key without effect":      {torn, func(f *facts) { f.runs[0].keys = append(f.runs[0].keys, f.runs[1].keys...) }},
		"position behind":         {misplaced, func(f *facts) { f.positions[1] = position{2, 4, "z"} }},
		"position ahead":          {misplaced, func(f *facts) { f.positions[1] = position{4, 4, "z"} }},
		"position gone":           {misplaced, func(f *facts) { delete(f.positions, 1) }},
		"position's epoch behind": {misplaced, func(f *facts) { f.positions[1] = position{3, 3, "z"} }},
		"no dead letter":          {letter, func(f *facts) { f.letters = nil }},
		"dead letter twice":       {letter, func(f *facts) { f.letters = append(f.letters, f.letters[0]) }},
		"good record dead":        {letter, func(f *facts) { f.letters = append(f.letters, coordinate{0, 1}) }},
		"keys where none belong":  {torn, func(f *facts) { f.keyed = false }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := sound()
			c.tamper(&f)
			if found := check(f); !slices.ContainsFunc(found, func(x finding) bool { return x.class == c.class }) {
				t.Errorf("want %s, found %v", c.class, found)
			}
		})
	}
}
