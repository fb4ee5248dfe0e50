package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
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

// run is the audit row of one commit and partition.
type run struct {
	part                           int32
	from, to                       int64
	owner                          string
	epoch                          int64
	read, applied, duplicate, dead int64
	keys                           []byte // the run's fingerprints
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
	salt      []byte             // of the fingerprints
	topic     map[int32][]record // by partition, in offset order
	ends      map[int32]int64    // last stable offsets
	effects   []effect           // in the order they were written
	runs      []run
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
	for _, one := range []func(facts) []finding{checkEffects, checkOrder, checkChain, checkCounts, checkKeys, checkPositions, checkLetters} {
		found = append(found, one(f)...)
	}
	return found
}

func (f facts) partitions() []int32 { return slices.Sorted(maps.Keys(f.ends)) }

// first returns the records that must have an effect: of each key the first that
// can be applied.
func (f facts) first() map[coordinate]ledger {
	want := map[coordinate]ledger{}
	for part, recs := range f.topic {
		seen := map[string]bool{}
		for _, r := range recs {
			if r.poison || f.keyed && seen[r.Event] {
				continue
			}
			seen[r.Event] = true
			want[coordinate{part, r.offset}] = r.ledger
		}
	}
	return want
}

func (f facts) key(e effect) string {
	if f.keyed {
		return e.Event
	}
	return fmt.Sprintf("%d/%d", e.part, e.offset)
}

// checkEffects: every key exactly one effect, of its first good copy.
func checkEffects(f facts) (found []finding) {
	want, known := f.first(), map[string]coordinate{}
	for at, l := range want {
		known[f.key(effect{l, at.part, at.offset})] = at
	}
	seen := map[string]int{}
	for _, e := range f.effects {
		at, key := coordinate{e.part, e.offset}, f.key(e)
		first, ok := known[key]
		switch {
		case !ok:
			found = append(found, finding{phantom, fmt.Sprintf("effect of %q from %v: no committed record has this key", key, at)})
			continue
		case first != at:
			found = append(found, finding{shadowed, fmt.Sprintf("effect of %q from %v, its first copy is at %v", key, at, first)})
		case want[at] != e.ledger:
			found = append(found, finding{phantom, fmt.Sprintf("effect of %q at %v is %+v, the record says %+v", key, at, e.ledger, want[at])})
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

// chains are the audit rows of each partition along its offsets.
func (f facts) chains() map[int32][]run {
	chains := map[int32][]run{}
	for _, r := range f.runs {
		chains[r.part] = append(chains[r.part], r)
	}
	for _, rs := range chains {
		slices.SortStableFunc(rs, func(a, b run) int { return cmp.Compare(a.from, b.from) })
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
		next, before := int64(0), run{}
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
	for _, r := range f.runs {
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

// checkKeys: the run of each commit has the fingerprints of what was applied in
// its range, sorted, and no others. A pipeline without a key has none, and a sealed
// run has given its own away.
func checkKeys(f facts) (found []finding) {
	effects := map[int32][]effect{}
	for _, e := range f.effects {
		effects[e.part] = append(effects[e.part], e)
	}
	for _, es := range effects {
		slices.SortStableFunc(es, func(a, b effect) int { return cmp.Compare(a.offset, b.offset) })
	}
	byOffset := func(e effect, offset int64) int { return cmp.Compare(e.offset, offset) }
	for _, r := range f.runs {
		if r.keys == nil { // sealed and cleaned up: its keys are in a segment
			continue
		}
		var want [][]byte
		if es := effects[r.part]; f.keyed {
			from, _ := slices.BinarySearchFunc(es, r.from, byOffset)
			to, _ := slices.BinarySearchFunc(es, r.to, byOffset)
			for _, e := range es[from:max(from, to)] {
				want = append(want, fingerprint(f.salt, e.Event))
			}
		}
		slices.SortFunc(want, bytes.Compare)
		if w := bytes.Join(want, nil); !bytes.Equal(w, r.keys) {
			found = append(found, finding{torn, fmt.Sprintf("partition %d [%d, %d): the run's %d fingerprints are not those of the %d effects", r.part, r.from, r.to, len(r.keys)/16, len(want))})
		}
	}
	return found
}

// fingerprint is the documented one of a business key that is one text: written
// down again here, so that a change of the encoding does not go unseen.
func fingerprint(salt []byte, text string) []byte {
	const domainKey, partText = 1, 1
	b := append(slices.Clone(salt), domainKey, partText)
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	sum := sha256.Sum256(append(b, text...))
	return sum[:16]
}

// within counts the sorted offsets that lie in the run's range.
func within(offsets []int64, r run) int64 {
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
