package storm

import "effectonce/cmd/processor/internal/produce"

// ledger is a topic as a client without a group read it: which order each record
// carries. The orders of a seed are numbered, and a number tells its key.
type ledger struct {
	seed  uint64
	lanes map[int32]*lane
	known []bool // by number: it has a record
}

// lane is one partition, by offset.
type lane struct {
	numbers []int64 // of the order, none where there is no record
	repeat  []bool  // an earlier record has the order
	written []int64 // what orders the writes: the effect's seq, 0 for no effect
}

const none = -1

func newLedger(seed uint64) *ledger { return &ledger{seed: seed, lanes: map[int32]*lane{}} }

// record adds a record of the topic. Those of a partition come in order; a key comes
// on one partition only, as the producer places it.
// It reports whether the key is an order of the seed's.
func (l *ledger) record(part int32, offset int64, key string) bool {
	number, ok := produce.Number(l.seed, key)
	if !ok || number < 0 || number > tooMany {
		return false
	}
	n := l.lanes[part]
	if n == nil {
		n = &lane{}
		l.lanes[part] = n
	}
	for int64(len(n.numbers)) < offset {
		n.add(none, false)
	}
	for int64(len(l.known)) <= number {
		l.known = append(l.known, false)
	}
	n.add(number, l.known[number])
	l.known[number] = true
	return true
}

// tooMany is a number that no storm reaches; one of another seed is beyond it.
const tooMany = 1 << 32

// records is how many the topic has.
func (l *ledger) records() (n int64) {
	for _, lane := range l.lanes {
		for _, number := range lane.numbers {
			if number != none {
				n++
			}
		}
	}
	return n
}

// keys is how many distinct orders it has.
func (l *ledger) keys() (n int64) {
	for _, k := range l.known {
		if k {
			n++
		}
	}
	return n
}

func (n *lane) add(number int64, repeat bool) {
	n.numbers = append(n.numbers, number)
	n.repeat = append(n.repeat, repeat)
	n.written = append(n.written, 0)
}

// effect is one row of an effect table.
type effect struct {
	seq    int64 // ascends with the writes, above 0
	part   int32
	offset int64
	key    string
}

// Tally counts what a table has beside what it should have.
type Tally struct {
	Rows      int64 `json:"rows"`
	Lost      int64 `json:"lost"`      // orders of the topic without a row
	Doubled   int64 `json:"doubled"`   // rows beyond the first of an order
	Replayed  int64 `json:"replayed"`  // of these: of a record that had one
	Reordered int64 `json:"reordered"` // rows written before one of an earlier record of their partition
	Shadowed  int64 `json:"shadowed"`  // rows of a repeat that was applied in place of the first
	Unknown   int64 `json:"unknown"`   // rows that no record of the topic explains
}

// exact reports whether the promise holds.
func (t Tally) exact() bool {
	return t.Lost == 0 && t.Doubled == 0 && t.Reordered == 0 && t.Shadowed == 0 && t.Unknown == 0
}

// check holds a table's rows, in any order, against the topic.
type check struct {
	ledger *ledger
	tally  Tally
	rows   []uint8 // by number
}

// What an order has.
const (
	hasRow   = 1 << iota
	hasFirst // a row of its first record
)

func (l *ledger) check() *check { return &check{ledger: l, rows: make([]uint8, len(l.known))} }

func (c *check) effect(e effect) {
	c.tally.Rows++
	number, ok := produce.Number(c.ledger.seed, e.key)
	n := c.ledger.lanes[e.part]
	if !ok || n == nil || e.offset < 0 || e.offset >= int64(len(n.numbers)) || n.numbers[e.offset] != number {
		c.tally.Unknown++
		return
	}
	if n.written[e.offset] != 0 {
		c.tally.Replayed++
	}
	n.written[e.offset] = max(n.written[e.offset], e.seq)
	if c.rows[number] > 0 {
		c.tally.Doubled++
	}
	c.rows[number] |= hasRow
	if !n.repeat[e.offset] {
		c.rows[number] |= hasFirst
	}
}

// end counts what only the whole tells.
func (c *check) end() Tally {
	for _, n := range c.ledger.lanes {
		latest := int64(0)
		for offset, number := range n.numbers {
			seq := n.written[offset]
			if seq == 0 {
				if number != none && !n.repeat[offset] && c.rows[number] == 0 {
					c.tally.Lost++
				}
				continue
			}
			if seq < latest {
				c.tally.Reordered++
			}
			if c.rows[number]&hasFirst == 0 {
				c.tally.Shadowed++
			}
			latest = max(latest, seq)
		}
	}
	return c.tally
}
