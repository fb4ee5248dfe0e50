package dedup

import "hash/crc32"

// Partitioner is how producers choose a record's partition by its Kafka key. In
// scope partition a key must always come on one partition, so it is checked in
// the data.
type Partitioner string

// The partitioners that are known. PartitionerNone checks nothing: a key that
// moves (partitions were added, another producer) is then applied once in each
// partition it comes on.
const (
	Murmur2         Partitioner = "murmur2" // Java, franz-go, most others
	CRC32           Partitioner = "crc32"   // librdkafka's consistent, Ruby
	FNV1a           Partitioner = "fnv1a"   // Sarama
	PartitionerNone Partitioner = "none"
)

// Partition returns the partition of a key among n. It must not be called for
// PartitionerNone.
func (p Partitioner) Partition(key []byte, n int32) int32 {
	switch p {
	case CRC32:
		return int32(crc32.ChecksumIEEE(key) % uint32(n))
	case FNV1a:
		h := uint32(2166136261)
		for _, c := range key {
			h = (h ^ uint32(c)) * 16777619
		}
		m := int32(h) % n
		if m < 0 {
			m = -m
		}
		return m
	default:
		return int32(murmur2(key)&0x7fffffff) % n
	}
}

// Fitting returns the partitioners under which every one of these keys belongs to
// partition number of n.
func Fitting(keys [][]byte, number, n int32) []Partitioner {
	var fit []Partitioner
	for _, p := range []Partitioner{Murmur2, CRC32, FNV1a} {
		ok := true
		for _, k := range keys {
			ok = ok && p.Partition(k, n) == number
		}
		if ok {
			fit = append(fit, p)
		}
	}
	return fit
}

// murmur2 is the hash of Kafka's Java client: 32 bits, seed 0x9747b28c.
func murmur2(b []byte) uint32 {
	const m, seed = 0x5bd1e995, 0x9747b28c
	h := seed ^ uint32(len(b))
	for ; len(b) >= 4; b = b[4:] {
		k := uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24
		k *= m
		k ^= k >> 24
		k *= m
		h *= m
		h ^= k
	}
	switch len(b) {
	case 3:
		h ^= uint32(b[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(b[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(b[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
