package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// record is one committed record of the topic, as an independent client read it.
type record struct {
	ledger
	offset int64
	poison bool // no record that can be applied: it must become a dead letter
}

// ledger is what an event says.
type ledger struct {
	Event   string `json:"event_id"`
	Account string `json:"account"`
	Seq     int64  `json:"seq"`
	Delta   int64  `json:"delta"`
}

// effect is one row of the effect table, with the coordinates it came from.
type effect struct {
	ledger
	part   int32
	offset int64
}

// span is what a commit says it did to one partition: a row of the audit trail.
type span struct {
	part                           int32
	from, to                       int64
	owner                          string
	epoch                          int64
	read, applied, duplicate, dead int64
}

// run is one commit to one log: in scope topic over several partitions.
type run struct {
	log, seq int64
	spans    []span
	keys     []byte // its fingerprints; nil once they are in a segment
}

// sealed is what a log has given to segments.
type sealed struct {
	log, upTo int64  // the last run whose keys they have
	keys      []byte // the fingerprints of its live segments
}

// coordinate names a record.
type coordinate struct {
	part   int32
	offset int64
}

// position is a partition's row.
type position struct {
	next, epoch int64
	owner       string
}

// facts are what the checker compares.
type facts struct {
	keyed     bool               // the business key is the event, else the coordinates
	whole     bool               // scope topic: a key may come on any partition, and has one effect over all
	salt      []byte             // of the fingerprints
	topic     map[int32][]record // by partition, in offset order
	ends      map[int32]int64    // last stable offsets
	effects   []effect           // in the order they were written
	runs      []run              // of each log in order
	sealed    []sealed           // one a log
	positions map[int32]position
	letters   []coordinate
}

// finding is one breach of the promise.
type finding struct {
	class string // see the constants
	text  string
}

func (f finding) String() string { return f.class + ": " + f.text }

// The classes of findings.
const (
	lost      = "lost"      // a key without effect
	doubled   = "doubled"   // a key with more than one
	phantom   = "phantom"   // an effect that no committed record explains
	shadowed  = "shadowed"  // another copy than the first good one was applied
	premature = "premature" // a record was taken for the repeat of what was not applied yet
	reordered = "reordered" // effects of a partition are not in offset order
	chain     = "chain"     // audit rows do not tile [0, end), or epochs go back
	miscount  = "miscount"  // the audit rows' counts do not add up to what happened
	torn      = "torn"      // the log's keys are not those of the effects
	misplaced = "misplaced" // a position is not where effects and audit end
	letter    = "letter"    // a dead letter too few or too many
)

// upTo returns the facts with the topic cut at the positions: what must hold at
// any committed moment, while records wait.
func (f facts) upTo() facts {
	cut := f
	cut.topic, cut.ends = map[int32][]record{}, map[int32]int64{}
	for part, p := range f.positions {
		recs := f.topic[part]
		n, _ := slices.BinarySearchFunc(recs, p.next, func(r record, next int64) int { return cmp.Compare(r.offset, next) })
		cut.topic[part], cut.ends[part] = recs[:n], p.next
	}
	return cut
}

// check returns every breach it finds.
func check(f facts) []finding {
	var found []finding
	for _, one := range []func(facts) []finding{checkEffects, checkPast, checkOrder, checkChain, checkCounts, checkKeys, checkPositions, checkLetters} {
		found = append(found, one(f)...)
	}
	return found
}

func (f facts) partitions() []int32 { return slices.Sorted(maps.Keys(f.ends)) }

// copies are a key's candidates for its effect: of each partition the first record
// that can be applied. In scope partition there is one.
type copies map[coordinate]ledger

// first returns the candidates of every key.
func (f facts) first() map[string]copies {
	want := map[string]copies{}
	for part, recs := range f.topic {
		seen := map[string]bool{}
		for _, r := range recs {
			key := f.key(effect{r.ledger, part, r.offset})
			if r.poison || seen[key] {
				continue
			}
			seen[key] = true
			if want[key] == nil {
				want[key] = copies{}
			}
			want[key][coordinate{part, r.offset}] = r.ledger
		}
	}
	return want
}

// key names what must have one effect.
func (f facts) key(e effect) string {
	switch {
	case !f.keyed:
		return fmt.Sprintf("%d/%d", e.part, e.offset)
	case f.whole:
		return e.Event
	}
	return fmt.Sprintf("%d/%s", e.part, e.Event)
}

// checkEffects: every key exactly one effect, of the first good copy of a partition.
func checkEffects(f facts) (found []finding) {
	known := f.first()
	seen := map[string]int{}
	for _, e := range f.effects {
		at, key := coordinate{e.part, e.offset}, f.key(e)
		says, first := known[key][at]
		switch {
		case known[key] == nil:
			found = append(found, finding{phantom, fmt.Sprintf("effect of %q from %v: no committed record has this key", key, at)})
			continue
		case !first:
			found = append(found, finding{shadowed, fmt.Sprintf("effect of %q from %v, its first copies are %v", key, at, known[key])})
		case says != e.ledger:
			found = append(found, finding{phantom, fmt.Sprintf("effect of %q at %v is %+v, the record says %+v", key, at, e.ledger, says)})
		}
		if seen[key]++; seen[key] == 2 {
			found = append(found, finding{doubled, fmt.Sprintf("%q, again from %v", key, at)})
		}
	}
	for key, at := range known {
		if seen[key] == 0 {
			found = append(found, finding{lost, fmt.Sprintf("%q at %v", key, at)})
		}
	}
	return found
}

// checkPast: a record that a commit passed over repeats what was applied in this run
// of the log or before it. So what holds at the end held behind every commit.
func checkPast(f facts) (found []finding) {
	applied, have := map[coordinate]bool{}, map[string]bool{}
	for _, e := range f.effects {
		applied[coordinate{e.part, e.offset}] = true
	}
	for _, r := range f.runs {
		passed := map[coordinate]string{}
		for _, s := range r.spans {
			for _, rec := range f.within(s) {
				at, key := coordinate{s.part, rec.offset}, f.key(effect{rec.ledger, s.part, rec.offset})
				switch {
				case applied[at]:
					have[key] = true
				case !rec.poison:
					passed[at] = key
				}
			}
		}
		for at, key := range passed {
			if !have[key] {
				found = append(found, finding{premature, fmt.Sprintf("%q at %v, passed over in run %d of log %d", key, at, r.seq, r.log)})
			}
		}
	}
	return found
}

// within are the topic's records in a range.
func (f facts) within(s span) []record {
	at := func(r record, offset int64) int { return cmp.Compare(r.offset, offset) }
	recs := f.topic[s.part]
	from, _ := slices.BinarySearchFunc(recs, s.from, at)
	to, _ := slices.BinarySearchFunc(recs, s.to, at)
	return recs[from:max(from, to)]
}

// checkOrder: the effects of a partition come in the order of their offsets.
func checkOrder(f facts) (found []finding) {
	last := map[int32]int64{}
	for _, e := range f.effects {
		if at, ok := last[e.part]; ok && e.offset <= at {
			found = append(found, finding{reordered, fmt.Sprintf("partition %d: offset %d behind %d", e.part, e.offset, at)})
		}
		last[e.part] = e.offset
	}
	return found
}

// spans are the audit rows of all runs.
func (f facts) spans() (all []span) {
	for _, r := range f.runs {
		all = append(all, r.spans...)
	}
	return all
}

// chains are the audit rows of each partition along its offsets.
func (f facts) chains() map[int32][]span {
	chains := map[int32][]span{}
	for _, r := range f.spans() {
		chains[r.part] = append(chains[r.part], r)
	}
	for _, rs := range chains {
		slices.SortStableFunc(rs, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	}
	return chains
}

// checkChain: the audit rows tile [0, end), and along them epochs never go back
// and name one owner each.
func checkChain(f facts) (found []finding) {
	chains := f.chains()
	for _, part := range f.partitions() {
		broken := func(format string, args ...any) {
			found = append(found, finding{chain, fmt.Sprintf("partition %d: ", part) + fmt.Sprintf(format, args...)})
		}
		next, before := int64(0), span{}
		for i, r := range chains[part] {
			switch {
			case r.from > next:
				broken("no audit row for [%d, %d)", next, r.from)
			case r.from < next:
				broken("[%d, %d) is covered again by [%d, %d)", r.from, next, r.from, r.to)
			case r.to <= r.from:
				broken("empty range [%d, %d)", r.from, r.to)
			}
			switch {
			case r.epoch < 1:
				broken("[%d, %d) has epoch %d", r.from, r.to, r.epoch)
			case i > 0 && r.epoch < before.epoch:
				broken("[%d, %d) has epoch %d behind %d", r.from, r.to, r.epoch, before.epoch)
			case i > 0 && r.epoch == before.epoch && r.owner != before.owner:
				broken("[%d, %d): epoch %d has two owners", r.from, r.to, r.epoch)
			}
			next, before = max(next, r.to), r
		}
		if next != f.ends[part] {
			broken("audit rows end at %d, the log at %d", next, f.ends[part])
		}
	}
	return found
}

// checkCounts: each audit row counts what the topic holds in its range and what
// was applied from it.
func checkCounts(f facts) (found []finding) {
	applied, dead, offsets := map[int32][]int64{}, map[int32][]int64{}, map[int32][]int64{}
	for _, e := range f.effects {
		applied[e.part] = append(applied[e.part], e.offset)
	}
	for _, l := range f.letters {
		dead[l.part] = append(dead[l.part], l.offset)
	}
	for part, recs := range f.topic {
		for _, r := range recs {
			offsets[part] = append(offsets[part], r.offset)
		}
	}
	for _, m := range []map[int32][]int64{applied, dead, offsets} {
		for _, os := range m {
			slices.Sort(os)
		}
	}
	for _, r := range f.spans() {
		for _, c := range []struct {
			what      string
			got, want int64
		}{
			{"read", r.read, within(offsets[r.part], r)},
			{"applied", r.applied, within(applied[r.part], r)},
			{"dead", r.dead, within(dead[r.part], r)},
			{"applied + duplicate + dead", r.applied + r.duplicate + r.dead, r.read},
		} {
			if c.got != c.want {
				found = append(found, finding{miscount, fmt.Sprintf("partition %d [%d, %d): %s is %d, should be %d", r.part, r.from, r.to, c.what, c.got, c.want)})
			}
		}
	}
	return found
}

// within counts the sorted offsets that lie in the range.
func within(offsets []int64, r span) int64 {
	from, _ := slices.BinarySearch(offsets, r.from)
	to, _ := slices.BinarySearch(offsets, r.to)
	return int64(to - from)
}

// checkPositions: each position is at the end, and its epoch not behind the chain's.
func checkPositions(f facts) (found []finding) {
	chains := f.chains()
	for _, part := range f.partitions() {
		p, ok := f.positions[part]
		if !ok || p.next != f.ends[part] {
			found = append(found, finding{misplaced, fmt.Sprintf("partition %d: position %d, end %d", part, p.next, f.ends[part])})
		}
		if rs := chains[part]; len(rs) > 0 && p.epoch < rs[len(rs)-1].epoch {
			found = append(found, finding{misplaced, fmt.Sprintf("partition %d: epoch %d, its last audit row has %d", part, p.epoch, rs[len(rs)-1].epoch)})
		}
	}
	return found
}

// checkLetters: every poison record is a dead letter, and nothing else is.
func checkLetters(f facts) (found []finding) {
	want := map[coordinate]bool{}
	for part, recs := range f.topic {
		for _, r := range recs {
			if r.poison {
				want[coordinate{part, r.offset}] = true
			}
		}
	}
	for _, l := range f.letters {
		if !want[l] {
			found = append(found, finding{letter, fmt.Sprintf("%v is a dead letter for no reason, or twice", l)})
		}
		delete(want, l)
	}
	for l := range want {
		found = append(found, finding{letter, fmt.Sprintf("%v should be a dead letter", l)})
	}
	return found
}
