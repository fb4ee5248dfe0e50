package dedup

import (
	"hash/crc32"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kgo"
)

// TestMurmur2 holds Kafka's own vectors: UtilsTest.testMurmur2 of the Java client.
func TestMurmur2(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
		"abc": 479470107,
	} {
		if got := int32(murmur2([]byte(key))); got != want {
			t.Errorf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}
}

// TestPartitionersAreTheirs compares with the implementations producers use, for
// keys of every length and counts that are no powers of two.
func TestPartitionersAreTheirs(t *testing.T) {
	t.Parallel()
	fnv1a := func(b []byte) uint32 {
		h := fnv.New32a()
		_, _ = h.Write(b) // never fails
		return h.Sum32()
	}
	// Sarama's hash partitioner: the hash as a signed number, modulo, then without
	// its sign. librdkafka's consistent partitioner: an unsigned modulo.
	theirs := map[Partitioner]kgo.TopicPartitioner{
		Murmur2: kgo.StickyKeyPartitioner(nil).ForTopic("t"),
		FNV1a:   kgo.StickyKeyPartitioner(kgo.SaramaCompatHasher(fnv1a)).ForTopic("t"),
		CRC32: kgo.StickyKeyPartitioner(func(b []byte, n int) int {
			return int(crc32.ChecksumIEEE(b) % uint32(n))
		}).ForTopic("t"),
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for i := range 20_000 {
		key := make([]byte, i%40)
		for j := range key {
			key[j] = byte(rng.Uint32())
		}
		n := int32(1 + rng.IntN(500))
		for p, their := range theirs {
			if got, want := p.Partition(key, n), int32(their.Partition(&kgo.Record{Key: key}, int(n))); got != want {
				t.Fatalf("%s of %x among %d = %d, want %d", p, key, n, got, want)
			}
		}
	}
}

// TestPartitionVectors pins values that were known before: Sarama's and
// librdkafka's published checks of the algorithms ("123456789" is CRC's own).
func TestPartitionVectors(t *testing.T) {
	t.Parallel()
	const big = 1<<31 - 1
	for _, c := range []struct {
		p    Partitioner
		key  string
		n    int32
		want int32
	}{
		{CRC32, "123456789", big, int32(uint32(0xcbf43926) % big)},
		{CRC32, "", 7, 0},
		{FNV1a, "a", big, 468965076},       // 0xe40c292c is negative: without its sign
		{FNV1a, "foobar", big, 1080231576}, // 0xbf9cf968 likewise
		{Murmur2, "abc", big, 479470107},
		{Murmur2, "21", big, 1173551340}, // −973932308 without its sign bit
	} {
		if got := c.p.Partition([]byte(c.key), c.n); got != c.want {
			t.Errorf("%s of %q = %d, want %d", c.p, c.key, got, c.want)
		}
	}
}

func TestFitting(t *testing.T) {
	t.Parallel()
	for _, p := range []Partitioner{Murmur2, CRC32, FNV1a} {
		var keys [][]byte
		for i := 0; len(keys) < 20; i++ {
			if k := []byte{byte(i), byte(i >> 8), 'k'}; p.Partition(k, 12) == 5 {
				keys = append(keys, k)
			}
		}
		if diff := cmp.Diff([]Partitioner{p}, Fitting(keys, 5, 12)); diff != "" {
			t.Error(diff)
		}
		if fit := Fitting(append(keys, keys[0][:1]), 5, 12); slices.Contains(fit, p) && p.Partition(keys[0][:1], 12) != 5 {
			t.Errorf("%s fits though one key does not", p)
		}
	}
	if diff := cmp.Diff([]Partitioner{Murmur2, CRC32, FNV1a}, Fitting([][]byte{{1}}, 0, 1)); diff != "" {
		t.Error(diff)
	}
	if fit := Fitting([][]byte{{1}, {2}, {3}, {4}, {5}, {6}, {7}}, 0, 1000); len(fit) > 0 {
		t.Errorf("%v fit", fit)
	}
}
