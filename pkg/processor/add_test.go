package processor

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/decode"
	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
)

// keyless is a committer of a pipeline without a business key: nothing but offsets
// tells a record from its repeat.
func keyless(t *testing.T) *committer {
	t.Helper()
	plan, err := decode.New(nil, decode.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return (&Processor{plan: plan}).newCommitter()
}

// A session that was cancelled before its cursors were set is resumed: the partition
// is fetched from the position of its takeover, behind what its queue holds already.
func TestASliceThatRepeatsTheOneBeforeIt(t *testing.T) {
	t.Parallel()
	c := keyless(t)
	p := &part{q: &queue{claim: claimOf(1, 3)}, log: &share{}}
	p.log.fold.Reset(0)
	p.to = p.q.claim.Next
	for _, recs := range [][]*kgo.Record{recordsOf(0, 10), recordsOf(5, 10), recordsOf(0, 4)} {
		c.add(p, recs)
	}
	var got []int64
	for _, r := range c.batch.Records {
		got = append(got, r.Offset)
	}
	if len(got) != 12 || got[0] != 3 || got[11] != 14 {
		t.Errorf("offsets %v, want 3 to 14 once", got)
	}
	if p.to != 15 {
		t.Errorf("the position would move to %d", p.to)
	}
}

// A slice is what one fetch brought, and may be far more than a transaction's bytes.
func TestABatchIsCutAtItsBytes(t *testing.T) {
	t.Parallel()
	l := newList(1000, 10*recordSize, 1<<30)
	running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 100))
	next := int64(0)
	for next < 100 {
		p := l.take().parts[0]
		if n := count(p); n != 10 || first(p) != next {
			t.Fatalf("%d records from %d in a transaction of ten records' bytes", n, first(p))
		}
		next += 10
		p.to = next
		l.committed(p)
	}
	if l.bytes != 0 {
		t.Errorf("%d bytes are still in flight", l.bytes)
	}
}

// A record larger than the transaction's bytes goes alone.
func TestALargeRecordGoesAlone(t *testing.T) {
	t.Parallel()
	l := newList(1000, 100, 1<<30)
	running(l, 1)
	l.offer(nameOf(1), recordsOf(0, 3))
	if n := count(l.take().parts[0]); n != 1 {
		t.Errorf("%d records", n)
	}
}

// Control records have keys of their own, which no producer's partitioner placed.
func TestControlRecordsDoNotSpeakForThePartitioner(t *testing.T) {
	t.Parallel()
	marker := []byte{0, 0, 0, 1} // a commit's
	key := []byte("k")
	n := dedup.CRC32.Partition(key, 4)
	for n == dedup.Murmur2.Partition(key, 4) || n == dedup.CRC32.Partition(marker, 4) {
		key = append(key, 'k')
		n = dedup.CRC32.Partition(key, 4)
	}
	recs := recordsOf(0, 2)
	recs[0].Key, recs[1].Key = key, marker
	recs[1].Attrs = kgo.NewRecordAttrs(kgo.RecordAttrsOpts{Control: true})
	name := rebalance.Name{Topic: "t", Number: n}
	processor := &Processor{topics: map[string]rebalance.Topic{"t": {Partitions: 4}}}
	cause := processor.fits(rebalance.Cause{Code: "partitioner"}, &part{q: &queue{name: name}, recs: [][]*kgo.Record{recs}})
	if !strings.Contains(cause.Fix, "the 1 keys at hand fit partitioner: crc32") {
		t.Errorf("told: %s", cause.Fix)
	}
}
