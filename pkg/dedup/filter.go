package dedup

import (
	"math"
	"math/bits"

	"github.com/bits-and-blooms/bloom/v3"
)

// Filter says "surely not in" or "maybe in" about fingerprints. Storage, parameters
// and serialisation are bits-and-blooms'; positions are block-local: one block of
// 512 bits, a cache line, is chosen by multiply-shift of a fingerprint's first
// word, and k bits inside it by 9 bits each. Fingerprints are uniform, so nothing
// is hashed again, and what is added in order walks the filter from front to back.
//
// A filter has no false negative about the keys it was given. Beyond its capacity
// it answers "maybe" more often; it is then due to be rebuilt.
type Filter struct {
	bloom    *bloom.BloomFilter
	words    []uint64 // of bloom
	blocks   uint64
	k        int
	capacity int64
	n        int64
	gone     int64 // of n, keys that have expired: nobody needs them, and nothing takes them out
}

// shape is a filter's rate of false positives by the textbook, which gives its
// bits a key. Block-local positions cost about 0.06 points on top at 14 bits.
type shape struct {
	rate  float64
	least int64 // smallest capacity: an empty start must not be full at once
}

var (
	gateShape    = shape{rate: 0.001, least: 1 << 14}  // 14.4 bits a key, k 8: 0.16 % measured
	segmentShape = shape{rate: 0.0215, least: 1 << 10} // 8 bits a key
)

const (
	blockBits = 512
	maxBits   = 8 // k at most: 9 bits of the first word, 63 of the second
)

// worstRate is the most that a shape may come to when memory is short: three bits a
// key.
const worstRate = 0.25

// within is the shape with as many bits a key as fit into so many bytes: rather more
// false positives than no filter.
func (s shape) within(capacity, bytes int64) shape {
	bitsPerKey := float64(8*bytes) / float64(max(capacity, s.least))
	s.rate = min(max(s.rate, math.Exp(-bitsPerKey*math.Ln2*math.Ln2)), worstRate)
	return s
}

// rate is the share of false positives, by the textbook, of a filter that holds as
// many keys as it was made for.
func (f *Filter) rate() float64 {
	k := float64(f.k)
	return math.Pow(1-math.Exp(-k*float64(f.capacity)/float64(64*len(f.words))), k)
}

// newFilter makes an empty filter for this many keys.
func newFilter(capacity int64, s shape) *Filter {
	capacity = max(capacity, s.least)
	m, k := s.parameters(capacity)
	return wrap(bloom.New(m, k), capacity, 0)
}

// parameters are the bits, and the bits a key, of a filter for this many keys.
func (s shape) parameters(capacity int64) (m, k uint) {
	m, k = bloom.EstimateParameters(uint(capacity), s.rate)
	return (m + blockBits - 1) / blockBits * blockBits, min(k, maxBits)
}

func wrap(b *bloom.BloomFilter, capacity, n int64) *Filter {
	return &Filter{
		bloom: b, words: b.BitSet().Words(), blocks: uint64(b.Cap() / blockBits), k: int(b.K()), capacity: capacity, n: n,
	}
}

// block is where all bits of a fingerprint lie.
func (f *Filter) block(k slot) *[8]uint64 {
	i, _ := bits.Mul64(k.hi, f.blocks)
	return (*[8]uint64)(f.words[i*8:])
}

// add puts a fingerprint in. What was in already, or seemed so, is not counted.
func (f *Filter) add(k slot) {
	b := f.block(k)
	w, bit := &b[k.hi>>6&7], uint64(1)<<(k.hi&63)
	changed := bit &^ *w
	*w |= bit
	x := k.lo
	for range f.k - 1 {
		w, bit = &b[x>>6&7], uint64(1)<<(x&63)
		changed |= bit &^ *w
		*w |= bit
		x >>= 9
	}
	if changed != 0 {
		f.n++
	}
}

// has is false only if the fingerprint was never added.
func (f *Filter) has(k slot) bool {
	b := f.block(k)
	if b[k.hi>>6&7]&(1<<(k.hi&63)) == 0 {
		return false
	}
	x := k.lo
	for range f.k - 1 {
		if b[x>>6&7]&(1<<(x&63)) == 0 {
			return false
		}
		x >>= 9
	}
	return true
}

// suits reports whether the filter has about as many bits as newFilter would give it
// in this shape: some other release, or with other memory, may have made it.
func (f *Filter) suits(s shape) bool {
	m, _ := s.parameters(f.capacity)
	have := f.bloom.Cap()
	return have*4 >= m*3 && have*4 <= m*5
}

// full reports whether the filter holds more than it was made for.
func (f *Filter) full() bool { return f.n > f.capacity }

// faded reports whether so many of a gate's keys have expired that a new one is due:
// each of them costs a question when it comes again, and memory until then.
func faded(gone, keys int64) bool { return gone > 0 && gone*10 >= keys*3 }

func (f *Filter) faded() bool { return faded(f.gone, f.n) }

// bytes is what the filter takes in memory.
func (f *Filter) bytes() int64 { return int64(len(f.words)) * 8 }
