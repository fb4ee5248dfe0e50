package processor

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// work is what one transaction carries: parts of one or several partitions, in the
// order of their logs.
type work struct {
	parts []*part
	logs  []*share
}

// share is what one log has of a transaction: the parts of one partition, or of
// several in scope topic. Its records are [lo, hi) of the committer's batch.
type share struct {
	scope  *scope
	lo, hi int
	fold   dedup.Fold
}

// part is one partition's share of a transaction. Its records are [lo, hi) of the
// committer's batch.
type part struct {
	q     *queue
	log   *share
	recs  [][]*kgo.Record
	bytes int64

	lo, hi      int
	to          int64 // next offset after the commit
	leaderEpoch int32
	newest      time.Time
	timeless    bool             // not every record's time counts
	stop        *rebalance.Cause // what stopped it short of its last record
	done        dedup.Range      // what the transaction did to the partition
}

// add appends a part. Those of one log come together.
func (w *work) add(p *part) {
	if !w.has(p.q.scope) {
		w.logs = append(w.logs, &share{scope: p.q.scope})
	}
	p.log = w.logs[len(w.logs)-1]
	w.parts = append(w.parts, p)
}

// has reports whether the last part is of this scope.
func (w *work) has(s *scope) bool { return len(w.logs) > 0 && w.logs[len(w.logs)-1].scope == s }

// shared is the log of w that other members append to as a matter of course; nil if
// its logs are of one writer each.
func (w *work) shared() *share {
	if len(w.logs) == 1 && w.logs[0].scope.shared() {
		return w.logs[0]
	}
	return nil
}

// late notes that the batch's time is over. What takes longer fits into it once little
// enough is taken: a search for bad records would otherwise begin anew for ever.
func (w *work) late(ctx context.Context) {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	for _, p := range w.parts {
		p.q.blame.late = min(p.q.blame.late+1, mostHalvings)
	}
}

// mostHalvings leave one record of the largest batch there may be.
const mostHalvings = 20

// of is w without all but these parts.
func of(parts []*part) *work {
	w := &work{}
	for _, p := range parts {
		if !w.has(p.q.scope) {
			w.logs = append(w.logs, p.log)
		}
		w.parts = append(w.parts, p)
	}
	return w
}

// moves reports whether the part has anything to commit.
func (p *part) moves() bool { return p.to > p.q.claim.Next }

// advance is the part's share of the fence.
func (p *part) advance(t rebalance.Topic) offsets.Advance {
	return offsets.Advance{
		Claim: p.q.claim, Generation: t.Generation, To: p.to, LeaderEpoch: p.leaderEpoch, Newest: p.newest,
	}
}

// count notes what was really applied of the part.
func (p *part) count(dead, applied []bool) {
	p.done = dedup.Range{Claim: p.q.claim, To: p.to, Read: int64(p.hi - p.lo)}
	for i := p.lo; i < p.hi; i++ {
		switch {
		case applied[i]:
			p.done.Applied++
		case dead[i]:
			p.done.Dead++
		default:
			p.done.Duplicate++
		}
	}
}

// runs are those of the transaction, one a log, from what was really applied.
func (w *work) runs(dead, applied []bool) []dedup.Run {
	runs := make([]dedup.Run, 0, len(w.logs))
	at := 0
	for _, s := range w.logs {
		timeless := false
		r := dedup.Run{
			View: s.scope.view, ID: stream.NewUUID(), Fingerprints: s.fold.Run(func(i int) bool { return applied[i] }),
		}
		for ; at < len(w.parts) && w.parts[at].log == s; at++ {
			p := w.parts[at]
			p.count(dead, applied)
			r.Ranges = append(r.Ranges, p.done)
			if p.newest.After(r.Newest) {
				r.Newest = p.newest
			}
			timeless = timeless || p.timeless
		}
		if timeless { // some key may be newer than it says: the time of the commit stands for it
			r.Newest = time.Time{}
		}
		runs = append(runs, r)
	}
	return runs
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
