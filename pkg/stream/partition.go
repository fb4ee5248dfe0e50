package stream

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// UUID is a 16-byte identifier: a topic id, an owner, a head_id. The zero
// value stands for "none".
type UUID [16]byte

// NewUUID draws 16 random bytes.
func NewUUID() UUID {
	var u UUID
	_, _ = rand.Read(u[:]) // never fails
	return u
}

// String returns the canonical form, 8-4-4-4-12 lower-case hex digits.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[:8], u[:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:], u[10:])
	return string(b[:])
}

// Partition is one Kafka partition. Its identity is the topic id and the
// number: a topic that was deleted and created again under the same name is
// another partition.
type Partition struct {
	Topic  UUID
	Number int32
}

// Compare orders partitions by (topic id, number): the lock order everywhere.
func (p Partition) Compare(q Partition) int {
	if c := bytes.Compare(p.Topic[:], q.Topic[:]); c != 0 {
		return c
	}
	return cmp.Compare(p.Number, q.Number)
}

// String is for logs of the last resort; people read topic names.
func (p Partition) String() string { return fmt.Sprintf("%s/%d", p.Topic, p.Number) }

// Claim is the right to commit for a partition: an owner drawn once per claim.
// Epoch counts claims, for people and for the audit chain; it is never compared
// by a guard.
type Claim struct {
	Partition   Partition
	TopicName   string // for people
	Owner       UUID
	Epoch       int64
	Next        int64 // the position: next offset to apply
	LeaderEpoch int32 // of the record before Next, -1 when unknown
}
