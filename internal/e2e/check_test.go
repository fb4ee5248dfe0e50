package e2e

import (
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
			{1, 1, []span{{part: 0, from: 0, to: 2, owner: "x", epoch: 1, read: 2, applied: 2}}, nil},
			{1, 2, []span{{part: 0, from: 2, to: 5, owner: "x", epoch: 1, read: 3, applied: 2, duplicate: 1}}, nil},
			{1, 3, []span{{part: 0, from: 5, to: 8, owner: "y", epoch: 2, read: 1, applied: 1}}, nil},
			{2, 1, []span{{part: 1, from: 0, to: 3, owner: "z", epoch: 4, read: 3, applied: 2, dead: 1}}, nil},
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
	seal(&f, 1, 1)
	seal(&f, 2, 0)
	return f
}

// shared is one in scope topic: both partitions in one log. Event e2 comes on both,
// and its effect is of the second, as another member was faster; e7 comes on both in
// one batch.
func shared() facts {
	event := func(n, offset, delta int64) record {
		return record{offset: offset, ledger: ledger{fmt.Sprintf("e%d", n), "a", n, delta}}
	}
	zero := []record{event(1, 0, 1), event(2, 1, 1), event(3, 2, 1), event(2, 3, 2), event(7, 4, 1)}
	one := []record{event(4, 0, 1), event(2, 1, 3), event(5, 2, 1), event(1, 3, 2), event(7, 4, 2)}
	f := facts{
		keyed: true, whole: true, salt: []byte("0123456789abcdef"),
		topic: map[int32][]record{0: zero, 1: one},
		ends:  map[int32]int64{0: 5, 1: 5},
		runs: []run{
			{1, 1, []span{{part: 0, from: 0, to: 1, owner: "x", epoch: 1, read: 1, applied: 1}}, nil},
			{1, 2, []span{{part: 1, from: 0, to: 3, owner: "y", epoch: 1, read: 3, applied: 3}}, nil},
			{1, 3, []span{{part: 0, from: 1, to: 4, owner: "x", epoch: 1, read: 3, applied: 1, duplicate: 2}}, nil},
			{1, 4, []span{
				{part: 0, from: 4, to: 5, owner: "x", epoch: 1, read: 1, applied: 1},
				{part: 1, from: 3, to: 5, owner: "x", epoch: 2, read: 2, duplicate: 2},
			}, nil},
		},
		positions: map[int32]position{0: {5, 1, "x"}, 1: {5, 2, "x"}},
		effects: []effect{
			{zero[0].ledger, 0, 0}, {one[0].ledger, 1, 0}, {one[1].ledger, 1, 1}, {one[2].ledger, 1, 2},
			{zero[2].ledger, 0, 2}, {zero[4].ledger, 0, 4},
		},
	}
	seal(&f, 1, 2)
	return f
}

// seal gives the runs of a log the keys of their effects; those up to a number are
// sealed, the first of them cleaned up.
func seal(f *facts, log, upTo int64) {
	var given [][]byte
	for i := range f.runs {
		r := &f.runs[i]
		if r.log != log {
			continue
		}
		keys := keysOf(f, *r)
		if r.seq <= upTo {
			given = append(given, keys...)
		}
		if r.keys = sorted(keys); r.seq == 1 && upTo > 0 {
			r.keys = nil
		}
	}
	f.sealed = append(f.sealed, sealed{log, upTo, sorted(given)})
}

func keysOf(f *facts, r run) (keys [][]byte) {
	for _, s := range r.spans {
		for _, e := range f.effects {
			if e.part == s.part && s.from <= e.offset && e.offset < s.to {
				keys = append(keys, fingerprint(f.salt, e.Event))
			}
		}
	}
	return keys
}

func TestSoundFactsPass(t *testing.T) {
	t.Parallel()
	for _, f := range []facts{sound(), shared()} {
		if found := check(f); len(found) > 0 {
			t.Errorf("found %v", found)
		}
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
	tampered(t, sound, map[string]tampering{
		"effect gone":             {lost, func(f *facts) { f.effects = slices.Delete(f.effects, 1, 2) }},
		"last effect gone":        {lost, func(f *facts) { f.effects = f.effects[:len(f.effects)-1] }},
		"effect twice":            {doubled, func(f *facts) { f.effects = append(f.effects, f.effects[0]) }},
		"the copy applied too":    {doubled, func(f *facts) { f.effects = slices.Insert(f.effects, 4, effect{f.topic[0][4].ledger, 0, 4}) }},
		"only the copy applied":   {shadowed, func(f *facts) { f.effects[2] = effect{f.topic[0][4].ledger, 0, 4} }},
		"aborted record applied":  {phantom, func(f *facts) { f.effects = append(f.effects, effect{ledger{"e9", "a", 9, 9}, 0, 5}) }},
		"poison applied":          {phantom, func(f *facts) { f.effects = append(f.effects, effect{ledger{}, 1, 0}) }},
		"other content":           {phantom, func(f *facts) { f.effects[0].Delta++ }},
		"two effects swapped":     {reordered, func(f *facts) { f.effects[0], f.effects[1] = f.effects[1], f.effects[0] }},
		"audit row gone":          {chain, func(f *facts) { f.runs = slices.Delete(f.runs, 1, 2) }},
		"first audit row gone":    {chain, func(f *facts) { f.runs = f.runs[1:] }},
		"last audit row gone":     {chain, func(f *facts) { f.runs = f.runs[:3] }},
		"audit row twice":         {chain, func(f *facts) { f.runs = append(f.runs, f.runs[0]) }},
		"ranges overlap":          {chain, func(f *facts) { f.runs[1].spans[0].from = 1 }},
		"epoch goes back":         {chain, func(f *facts) { f.runs[0].spans[0].epoch = 2 }},
		"one epoch, two owners":   {chain, func(f *facts) { f.runs[1].spans[0].owner = "q" }},
		"nobody's commit":         {chain, func(f *facts) { f.runs[0].spans[0].epoch = 0 }},
		"read too little":         {miscount, func(f *facts) { f.runs[0].spans[0].read--; f.runs[0].spans[0].applied-- }},
		"counts do not add up":    {miscount, func(f *facts) { f.runs[0].spans[0].duplicate++ }},
		"duplicate as applied":    {miscount, func(f *facts) { f.runs[1].spans[0].applied++; f.runs[1].spans[0].duplicate-- }},
		"applied without its key": {torn, func(f *facts) { f.runs[1].keys = f.runs[1].keys[16:] }},
		"another key":             {torn, func(f *facts) { f.runs[1].keys[3]++ }},
		"key without effect":      {torn, func(f *facts) { f.runs[1].keys = append(f.runs[1].keys, f.runs[2].keys...) }},
		"position behind":         {misplaced, func(f *facts) { f.positions[1] = position{2, 4, "z"} }},
		"position ahead":          {misplaced, func(f *facts) { f.positions[1] = position{4, 4, "z"} }},
		"position gone":           {misplaced, func(f *facts) { delete(f.positions, 1) }},
		"position's epoch behind": {misplaced, func(f *facts) { f.positions[1] = position{3, 3, "z"} }},
		"no dead letter":          {letter, func(f *facts) { f.letters = nil }},
		"dead letter twice":       {letter, func(f *facts) { f.letters = append(f.letters, f.letters[0]) }},
		"good record dead":        {letter, func(f *facts) { f.letters = append(f.letters, coordinate{0, 1}) }},
		"keys where none belong":  {torn, func(f *facts) { f.keyed = false }},
	})
}

// In scope topic a key has one effect over all partitions, and a run has several
// ranges.
func TestTamperedTopicFails(t *testing.T) {
	t.Parallel()
	tampered(t, shared, map[string]tampering{
		"effect gone":                      {lost, func(f *facts) { f.effects = slices.Delete(f.effects, 2, 3) }},
		"all copies passed over":           {lost, func(f *facts) { passOver(f, 2) }},
		"a copy on each partition applied": {doubled, func(f *facts) { f.effects = slices.Insert(f.effects, 4, effect{f.topic[0][1].ledger, 0, 1}) }},
		"both copies of one batch applied": {doubled, func(f *facts) { f.effects = append(f.effects, effect{f.topic[1][4].ledger, 1, 4}) }},
		"a later copy applied":             {shadowed, func(f *facts) { f.effects[2] = effect{f.topic[0][3].ledger, 0, 3} }},
		"the other copy's content":         {phantom, func(f *facts) { f.effects[2].ledger = f.topic[0][1].ledger }},
		"passed over before it came":       {premature, func(f *facts) { f.runs[1].seq, f.runs[2].seq = 3, 2; f.runs[1], f.runs[2] = f.runs[2], f.runs[1] }},
		"two effects swapped":              {reordered, func(f *facts) { f.effects[1], f.effects[2] = f.effects[2], f.effects[1] }},
		"one range of a run gone":          {chain, func(f *facts) { f.runs[3].spans = f.runs[3].spans[:1] }},
		"a range twice":                    {chain, func(f *facts) { f.runs[3].spans = append(f.runs[3].spans, f.runs[0].spans[0]) }},
		"counted on the other range": {miscount, func(f *facts) {
			s := f.runs[3].spans
			s[0].applied, s[0].duplicate, s[1].applied, s[1].duplicate = 0, 1, 1, 1
		}},
		"duplicate as applied":             {miscount, func(f *facts) { f.runs[2].spans[0].applied++; f.runs[2].spans[0].duplicate-- }},
		"key of the other copy's run":      {torn, func(f *facts) { f.runs[2].keys = sorted(append(keysOf(f, f.runs[2]), fingerprint(f.salt, "e2"))) }},
		"applied without its key":          {torn, func(f *facts) { f.runs[3].keys = []byte{} }},
		"no keys, not sealed":              {torn, func(f *facts) { f.runs[3].keys = nil }},
		"a key in two segments":            {torn, func(f *facts) { f.sealed[0].keys = append(f.sealed[0].keys[:16:16], f.sealed[0].keys...) }},
		"a key of a segment gone":          {torn, func(f *facts) { f.sealed[0].keys = f.sealed[0].keys[16:] }},
		"sealed further than its keys are": {torn, func(f *facts) { f.sealed[0].upTo++ }},
	})
}

// passOver takes away a key's effect as if every copy had been a duplicate.
func passOver(f *facts, i int) {
	gone := f.effects[i]
	f.effects = slices.Delete(f.effects, i, i+1)
	f.sealed = nil
	for _, r := range f.runs {
		for j := range r.spans {
			if s := &r.spans[j]; s.part == gone.part && s.from <= gone.offset && gone.offset < s.to {
				s.applied, s.duplicate = s.applied-1, s.duplicate+1
			}
		}
	}
	seal(f, 1, 2)
}

// tampering breaks a fact, and the class of finding that must tell of it.
type tampering struct {
	class string
	with  func(*facts)
}

func tampered(t *testing.T, sound func() facts, all map[string]tampering) {
	t.Helper()
	for name, c := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := sound()
			c.with(&f)
			if found := check(f); !slices.ContainsFunc(found, func(x finding) bool { return x.class == c.class }) {
				t.Errorf("want %s, found %v", c.class, found)
			}
		})
	}
}
