package processor

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// phase is where a queue stands. It is in flight at most once.
type phase uint8

const (
	idle      phase = iota // nothing to do
	lingering              // waits for a larger batch
	ready                  // on the ready list
	inFlight               // a committer has it
	resting                // failed, waits before it is ready again
)

// queue holds the records polled under one claim. The list's mutex guards it, but
// for what the committer that has it in flight alone may touch.
type queue struct {
	name     rebalance.Name
	phase    phase
	gone     bool        // dropped: the claim is not ours any more
	outgoing *time.Timer // the group took the partition away: it is committed for until the next owner takes over, or this ends
	recs     [][]*kgo.Record
	bytes    int64 // of recs and of what is in flight
	full     bool  // its fetching is paused
	scope    *scope
	rests    int // how often it waited: an older wait does not end this one

	// The committer's while in flight, the list's otherwise.
	claim  stream.Claim // Next is the position
	alone  bool         // commits alone until it succeeded once
	blame  blame
	newest time.Time // record time of the last commit
	calm   time.Time // when it last had nothing left
}

// single reports whether q has a transaction for itself: an other's failure must not
// hold it up, nor its own the others.
func (q *queue) single() bool { return q.alone || q.outgoing != nil }

// blame counts failures of a partition that commits alone.
type blame struct {
	tries    int   // failures in a row, for the wait
	late     int   // of late, how often the batch's time was over: each halves what is taken at once
	suspect  int   // of those, suspicions against a record
	doubt    int   // of those, unknown codes
	reloaded bool  // the catalog was read once more
	poison   int   // effects in a row that failed alone, over batches
	blamed   int64 // offset of the first of these
}

func (q *queue) push(recs []*kgo.Record) int64 {
	var n int64
	for _, r := range recs {
		n += sizeOf(r)
	}
	q.recs = append(q.recs, recs)
	q.bytes += n
	return n
}

// waiting is the number of records not in flight.
func (q *queue) waiting() (n int) {
	for _, s := range q.recs {
		n += len(s)
	}
	return n
}

// cut takes up to records and bytes from the front: at least one record, and no
// further one once the bytes are reached.
func (q *queue) cut(records int, bytes int64) (out [][]*kgo.Record, n int, size int64) {
	for len(q.recs) > 0 && n < records && size < bytes {
		s := q.recs[0]
		taken := 0
		for taken < len(s) && n < records && size < bytes {
			size += sizeOf(s[taken])
			taken++
			n++
		}
		out = append(out, s[:taken])
		if taken < len(s) {
			q.recs[0] = s[taken:]
		} else {
			q.recs = q.recs[1:]
		}
	}
	return out, n, size
}

// overhead is what a record costs in memory besides its bytes.
const overhead = 256

func sizeOf(r *kgo.Record) int64 {
	n := overhead + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}
