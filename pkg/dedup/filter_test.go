package dedup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// uniform are n fingerprints as SHA-256 would give them, sorted.
func uniform(rng *rand.Rand, n int) []slot {
	keys := make([]slot, n)
	for i := range keys {
		keys[i] = slot{rng.Uint64(), rng.Uint64()}
	}
	slices.SortFunc(keys, slot.compare)
	return keys
}

func fixed(a, b uint64) *rand.Rand { return rand.New(rand.NewPCG(a, b)) }

// TestFilterRate: no key that was added is missing, and the others are "maybe" as
// often as the gate and the segments' filters are sized for.
func TestFilterRate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shape           shape
		low, high, size float64 // per cent, bytes a key
	}{
		{gateShape, 0.1, 0.2, 1.81},
		{segmentShape, 1, 4, 1.01},
	} {
		rng := fixed(5, 6)
		const n = 400_000
		f := newFilter(n, c.shape)
		keys := uniform(rng, n)
		for _, k := range keys {
			f.add(k)
		}
		for _, k := range keys {
			if !f.has(k) {
				t.Fatalf("%x was added and is not in", k)
			}
		}
		maybe := 0
		for range n {
			if f.has(slot{rng.Uint64(), rng.Uint64()}) {
				maybe++
			}
		}
		rate := 100 * float64(maybe) / n
		t.Logf("%.3f %% false positives at %.2f bytes a key, k %d", rate, float64(f.bytes())/n, f.k)
		if rate < c.low || rate > c.high {
			t.Errorf("%.3f %% false positives, want %v to %v", rate, c.low, c.high)
		}
		if size := float64(f.bytes()) / n; size > c.size {
			t.Errorf("%.3f bytes a key, want %v", size, c.size)
		}
		if f.n > n || f.n < n*99/100 {
			t.Errorf("%d keys counted of %d", f.n, n)
		}
	}
}

// TestFilterIsFull: an empty start holds a few thousand keys; a full filter says
// so, and still never forgets a key nor says "maybe" to everything.
func TestFilterIsFull(t *testing.T) {
	t.Parallel()
	rng := fixed(7, 8)
	f := newFilter(0, gateShape)
	if f.capacity != gateShape.least || f.full() {
		t.Fatalf("an empty filter: capacity %d, full %v", f.capacity, f.full())
	}
	keys := uniform(rng, int(3*f.capacity))
	for i, k := range keys {
		f.add(k)
		f.add(k) // once more is no other key
		if f.n > int64(i+1) {
			t.Fatalf("%d keys counted after %d", f.n, i+1)
		}
	}
	if !f.full() {
		t.Error("three times its capacity is not full")
	}
	maybe := 0
	for range 10_000 {
		if f.has(slot{rng.Uint64(), rng.Uint64()}) {
			maybe++
		}
	}
	if maybe > 4000 {
		t.Errorf("%d of 10,000 are maybe", maybe)
	}
	for _, k := range keys {
		if !f.has(k) {
			t.Fatal("a key is forgotten")
		}
	}
}

// TestFilterEdges: the first and the last fingerprint have a block.
func TestFilterEdges(t *testing.T) {
	t.Parallel()
	f := newFilter(1, shape{rate: 0.001})
	if f.blocks != 1 {
		t.Fatalf("%d blocks", f.blocks)
	}
	f = newFilter(100_000, gateShape)
	for _, k := range []slot{{}, {^uint64(0), ^uint64(0)}, {0, 1}, {1, 0}} {
		f.add(k)
		if !f.has(k) {
			t.Errorf("%x", k)
		}
	}
}

// TestImage: an image is its filter, and an image that is anything else is an error.
func TestImage(t *testing.T) {
	t.Parallel()
	rng := fixed(9, 10)
	f := newFilter(3000, segmentShape)
	keys := uniform(rng, 3000)
	for _, k := range keys {
		f.add(k)
	}
	image, err := f.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	digest := Digest(image)
	g, err := ParseFilter(image, digest)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(f.words, g.words) || f.k != g.k || f.blocks != g.blocks || f.n != g.n || f.capacity != g.capacity {
		t.Error("another filter came back")
	}
	for bit := range len(image) * 8 { // a lying cache: one flipped bit, everywhere
		image[bit/8] ^= 1 << (bit % 8)
		if _, err := ParseFilter(image, digest); !errors.Is(err, ErrImage) {
			t.Fatalf("bit %d flipped: %v", bit, err)
		}
		image[bit/8] ^= 1 << (bit % 8)
	}
	other, err := newFilter(3000, segmentShape).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "cut": image[:len(image)-1], "longer": append(slices.Clone(image), 0), "another's": other,
	} {
		if _, err := ParseFilter(b, digest); !errors.Is(err, ErrImage) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// FuzzImage: whatever bytes come with a digest that fits them, the parser neither
// panics nor allocates beyond them, and what it accepts can be asked.
func FuzzImage(f *testing.F) {
	small := newFilter(1, shape{rate: 0.001})
	small.add(slot{1, 2})
	image, err := small.MarshalBinary()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(image)
	f.Add(image[:imageHeader])
	huge := slices.Clone(image)
	binary.BigEndian.PutUint64(huge[len(imageMagic)+16:], 1<<40)
	binary.BigEndian.PutUint64(huge[len(imageMagic)+32:], 1<<40)
	f.Add(huge)
	f.Fuzz(func(t *testing.T, image []byte) {
		got, err := ParseFilter(image, Digest(image))
		if err != nil {
			if !errors.Is(err, ErrImage) {
				t.Error(err)
			}
			return
		}
		if got.bytes() > int64(len(image)) {
			t.Errorf("%d bytes of %d", got.bytes(), len(image))
		}
		for _, k := range []slot{{}, {1, 2}, {^uint64(0), ^uint64(0)}} {
			got.has(k)
			got.add(k)
			if !got.has(k) {
				t.Errorf("%x", k)
			}
		}
	})
}

// BenchmarkFilter measures what a gate costs: keys added in order, as a seal does,
// and misses of sorted batches.
func BenchmarkFilter(b *testing.B) {
	for _, n := range []int{1_000_000, 20_000_000} {
		rng := fixed(1, 1)
		f := newFilter(int64(n), gateShape)
		keys := uniform(rng, n)
		b.Run(fmt.Sprintf("add/%d", n), func(b *testing.B) {
			for i := range b.N {
				f.add(keys[i%n])
			}
		})
		for _, k := range keys {
			f.add(k)
		}
		batch := uniform(rng, 1_000_000)
		for i := range 100 {
			slices.SortFunc(batch[i*10_000:(i+1)*10_000], slot.compare)
		}
		rng.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
		for i := range 100 {
			slices.SortFunc(batch[i*10_000:(i+1)*10_000], slot.compare)
		}
		b.Run(fmt.Sprintf("miss/%d", n), func(b *testing.B) {
			maybe := 0
			for i := range b.N {
				if f.has(batch[i%len(batch)]) {
					maybe++
				}
			}
			b.ReportMetric(100*float64(maybe)/float64(b.N), "%maybe")
		})
	}
}

// With little memory a filter has fewer bits a key, and as many false positives as
// its design says; it is never left out.
func TestShortOfMemory(t *testing.T) {
	t.Parallel()
	const keys = 1 << 17
	last := 0.0
	for _, bytesPerKey := range []float64{4, 1.5, 1, 0.7, 0.1} {
		shape := gateShape.within(keys, int64(keys*bytesPerKey))
		f := newFilter(keys, shape)
		rng := rand.New(rand.NewPCG(1, 1))
		random := func() slot { return slot{rng.Uint64(), rng.Uint64()} }
		for range keys {
			f.add(random())
		}
		hits := 0
		for range keys {
			if f.has(random()) {
				hits++
			}
		}
		measured := float64(hits) / keys
		if f.bytes() > int64(keys*max(bytesPerKey, 0.4))+blockBits/8 {
			t.Errorf("%g bytes a key: takes %d", bytesPerKey, f.bytes())
		}
		if f.rate() < last || measured > 1.3*f.rate()+0.001 || measured < f.rate()/2 {
			t.Errorf("%g bytes a key: %.4f by design, %.4f measured", bytesPerKey, f.rate(), measured)
		}
		last = f.rate()
	}
	if last < 0.2 || last > 0.3 {
		t.Errorf("worst rate is %.3f", last)
	}
}
