package dedup

import (
	"cmp"
	"encoding/binary"
)

// slot is a fingerprint as two big-endian words; zero is an empty slot.
type slot struct{ hi, lo uint64 }

func slotOf(f Fingerprint) slot {
	return slot{binary.BigEndian.Uint64(f[:8]), binary.BigEndian.Uint64(f[8:])}
}

func (s slot) less(t slot) bool { return s.hi < t.hi || s.hi == t.hi && s.lo < t.lo }

func (s slot) compare(t slot) int {
	if c := cmp.Compare(s.hi, t.hi); c != 0 {
		return c
	}
	return cmp.Compare(s.lo, t.lo)
}

// slotAt is the fingerprint at the beginning of b.
func slotAt(b []byte) slot { return slot{binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])} }

func (s slot) append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(b, s.hi), s.lo)
}

// set holds fingerprints exactly: open addressing, indexed by the top bits, so a
// sorted batch walks it from front to back. 16 bytes a slot, at most 4 of 5 in
// use, no pointers for the collector to follow.
type set struct {
	slots []slot
	shift uint // 64 - log2(len(slots))
	n     int
	zero  bool // the all-zero fingerprint is in
}

const minSlots = 1 << 10

func newSet(keys int) *set {
	size, shift := minSlots, uint(64-10)
	for size*4/5 <= keys {
		size *= 2
		shift--
	}
	return &set{slots: make([]slot, size), shift: shift}
}

func (s *set) has(k slot) bool {
	if k == (slot{}) {
		return s.zero
	}
	for i := k.hi >> s.shift; ; i++ {
		if i == uint64(len(s.slots)) {
			i = 0
		}
		switch s.slots[i] {
		case k:
			return true
		case slot{}:
			return false
		}
	}
}

// each calls f for every key.
func (s *set) each(f func(slot)) {
	if s.zero {
		f(slot{})
	}
	for _, k := range s.slots {
		if k != (slot{}) {
			f(k)
		}
	}
}

func (s *set) add(k slot) {
	if k == (slot{}) {
		if !s.zero {
			s.zero = true
			s.n++
		}
		return
	}
	if (s.n+1)*5 > len(s.slots)*4 {
		s.grow()
	}
	i := k.hi >> s.shift
	for s.slots[i] != (slot{}) {
		if s.slots[i] == k {
			return
		}
		if i++; i == uint64(len(s.slots)) {
			i = 0
		}
	}
	s.slots[i] = k
	s.n++
}

func (s *set) grow() {
	old := s.slots
	s.slots, s.shift = make([]slot, 2*len(old)), s.shift-1
	s.n = 0
	if s.zero {
		s.n = 1
	}
	for _, k := range old {
		if k != (slot{}) {
			s.add(k)
		}
	}
}
