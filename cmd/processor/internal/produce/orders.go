package produce

import (
	"iter"
	"math/rand/v2"
	"strconv"
	"time"
)

// MaxRepeat is the largest share of repeats, in percent.
const MaxRepeat = 90

// Order is one record of the stream: a JSON document of about 130 bytes under
// its order_id as Kafka key. Key and Value stay valid and are never written again.
type Order struct {
	Number int64 // which distinct order this is, counted from 0
	Key    []byte
	Value  []byte
	Repeat bool // the same key and payload were yielded before
}

// Orders yields an endless stream of orders. Of every 100 records in a row, counted
// from the first, exactly repeatPercent (0 to MaxRepeat) repeat an earlier order:
// one half of the last thousand, the other half of the whole past, since
// a redelivery comes at once or long after. The new orders are numbered without a
// gap, so the distinct orders of a prefix are the numbers below its count of
// non-repeats. Above a million records a second on one core.
func Orders(seed uint64, repeatPercent int) iter.Seq[Order] {
	return func(yield func(Order) bool) {
		g := generator{seed: seed, percent: min(max(repeatPercent, 0), MaxRepeat), rng: rand.New(rand.NewPCG(seed, stream))}
		for yield(g.next()) {
		}
	}
}

// Number returns which order of the seed's stream the key names; false if the key
// is no order of any stream. A key of another seed gives a number far outside
// every real stream, in all likelihood negative or above 2^40.
func Number(seed uint64, key string) (int64, bool) {
	if len(key) != keySize {
		return 0, false
	}
	id, err := strconv.ParseUint(key, 16, 64)
	if err != nil {
		return 0, false
	}
	return int64(unmix(id) - seed*golden), true
}

const (
	block   = 100     // the share of repeats is exact in each block
	recent  = 1000    // how far back a quick redelivery reaches, in distinct orders
	chunk   = 1 << 18 // bytes allocated at once for keys and values
	keySize = 16
	golden  = 0x9E3779B97F4A7C15 // odd, so seeds and numbers never collapse
	stream  = 0x6F7264657273     // second word of the random source
)

// generator is the state of one stream. Only which order is repeated is random;
// the content of an order follows from its number, so nothing is remembered.
type generator struct {
	seed    uint64
	percent int
	rng     *rand.Rand
	made    int64 // distinct orders so far
	slot    int   // position in the block
	left    int   // repeats the block still owes
	buf     []byte
}

func (g *generator) next() Order {
	if g.slot == 0 {
		g.left = g.percent
	}
	// Selection sampling: every subset of the block's slots is as likely. The
	// very first record has nothing to repeat, so the first slot is never one.
	repeat := g.slot > 0 && g.rng.IntN(block-g.slot) < g.left
	g.slot = (g.slot + 1) % block
	if !repeat {
		g.made++
		return g.order(g.made-1, false)
	}
	g.left--
	reach := g.made
	if g.rng.Uint64()&1 == 0 {
		reach = min(reach, recent)
	}
	return g.order(g.made-1-g.rng.Int64N(reach), true)
}

func (g *generator) order(n int64, repeat bool) Order {
	const room = 256
	if cap(g.buf)-len(g.buf) < room {
		g.buf = make([]byte, 0, chunk)
	}
	start := len(g.buf)
	g.buf = appendKey(g.buf, mix(uint64(n)+g.seed*golden))
	value := len(g.buf)
	g.buf = appendValue(g.buf, g.buf[start:value], g.seed, n)
	return Order{Number: n, Key: g.buf[start:value:value], Value: g.buf[value:len(g.buf):len(g.buf)], Repeat: repeat}
}

// appendValue writes the order as JSON. Everything but the time is drawn from the
// number; orders are a millisecond apart.
func appendValue(b, key []byte, seed uint64, n int64) []byte {
	states := [...]string{"created", "paid", "packed", "shipped"}
	currencies := [...]string{"EUR", "USD", "GBP", "CHF"}
	const first = 1_767_225_600_000 // 2026-01-01T00:00:00Z in milliseconds
	bits := mix(uint64(n)*golden ^ mix(seed))
	cents := bits % 100_000

	b = append(append(b, `{"order_id":"`...), key...)
	b = appendDigits(append(b, `","customer":"c`...), bits>>32%1_000_000, 6)
	b = strconv.AppendUint(append(b, `","amount":`...), cents/100, 10)
	b = appendDigits(append(b, '.'), cents%100, 2)
	b = append(append(b, `,"currency":"`...), currencies[bits>>24&3]...)
	b = append(append(b, `","status":"`...), states[bits>>28&3]...)
	b = time.UnixMilli(first+n).UTC().AppendFormat(append(b, `","ts":"`...), "2006-01-02T15:04:05.000Z")
	return append(b, `"}`...)
}

func appendKey(b []byte, id uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, digits[id>>shift&15])
	}
	return b
}

// appendDigits writes v with leading zeros.
func appendDigits(b []byte, v uint64, width int) []byte {
	for i := len(b) + width; len(b) < i; {
		b = append(b, '0')
	}
	for i := len(b) - 1; v > 0; i-- {
		b[i] = byte('0' + v%10)
		v /= 10
	}
	return b
}

// mix is the finaliser of SplitMix64. It is a bijection: distinct numbers have
// distinct ids, and unmix finds the number again.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

func unmix(z uint64) uint64 {
	z = (z ^ z>>31 ^ z>>62) * 0x319642B2D24D8EC3 // inverse of the second factor
	z = (z ^ z>>27 ^ z>>54) * 0x96DE1B173F119089 // inverse of the first
	return z ^ z>>30 ^ z>>60
}
