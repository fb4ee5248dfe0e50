package processor

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// work is what one transaction carries: parts of one or several partitions.
type work struct {
	parts []*part
}

// part is one partition's share of a transaction. Its records are [lo, hi) of the
// committer's batch.
type part struct {
	q     *queue
	recs  [][]*kgo.Record
	bytes int64

	lo, hi      int
	to          int64 // next offset after the commit
	leaderEpoch int32
	newest      time.Time
	fold        dedup.Fold
	stop        *rebalance.Cause // what stopped it short of its last record
	run         dedup.Run
}

// moves reports whether the part has anything to commit.
func (p *part) moves() bool { return p.to > p.q.claim.Next }

// advance is the part's share of the fence.
func (p *part) advance(t rebalance.Topic) offsets.Advance {
	return offsets.Advance{
		Claim: p.q.claim, Generation: t.Generation, To: p.to, LeaderEpoch: p.leaderEpoch, Newest: p.newest,
	}
}

// count fills the run from what was really applied.
func (p *part) count(dead, applied []bool) {
	r := dedup.Range{Claim: p.q.claim, To: p.to, Read: int64(p.hi - p.lo)}
	for i := p.lo; i < p.hi; i++ {
		switch {
		case applied[i]:
			r.Applied++
		case dead[i]:
			r.Dead++
		default:
			r.Duplicate++
		}
	}
	p.run = dedup.Run{
		View: p.q.view, ID: newID(), Newest: p.newest, Ranges: []dedup.Range{r},
		Fingerprints: p.fold.Run(func(i int) bool { return applied[i] }),
	}
}

func record(r *kgo.Record, topic stream.UUID) stream.Record {
	s := stream.Record{
		Topic: r.Topic, Partition: stream.Partition{Topic: topic, Number: r.Partition}, Offset: r.Offset,
		LeaderEpoch: r.LeaderEpoch, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value,
	}
	if len(r.Headers) > 0 {
		s.Headers = make([]stream.Header, len(r.Headers))
		for i, h := range r.Headers {
			s.Headers[i] = stream.Header(h)
		}
	}
	return s
}
