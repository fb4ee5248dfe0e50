package processor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// ahead is how far a record time may lie before this clock and still count: a
// producer can stamp what it likes, beyond what a timestamptz holds.
const ahead = 5 * time.Minute

// prepare does everything that needs no transaction: decode, fingerprint, drop
// offsets below the position, fold repeats, check against the views, encode. It
// returns false when the work was put back because keys could not be looked up.
func (c *committer) prepare(ctx context.Context, w *work) bool {
	c.batch.Reset(c.p.width)
	c.decoder.Reset()
	c.faults = c.faults[:0]
	c.horizon = time.Now().Add(ahead)
	var log *share
	for _, p := range w.parts {
		p.lo, p.to, p.leaderEpoch = len(c.batch.Records), p.q.claim.Next, p.q.claim.LeaderEpoch
		p.stop, p.newest, p.timeless = nil, time.Time{}, false
		if p.log != log {
			log = p.log
			log.lo = p.lo
			log.fold.Reset(log.lo)
		}
		for _, recs := range p.recs {
			if !c.add(p, recs) {
				break
			}
		}
		p.hi = len(c.batch.Records)
		log.hi = p.hi
	}
	for _, s := range w.logs {
		s.fold.Check(s.scope.view)
	}
	if !c.lookUp(ctx, w) {
		return false
	}
	n := len(c.batch.Records)
	c.dead, c.applied = zeroed(c.dead, n), zeroed(c.applied, n)
	for _, f := range c.faults {
		c.dead[f.Index] = true
	}
	c.encode(w)
	return true
}

// lookUp has Postgres decide what memory could not: a filter's maybe is never
// believed. It returns false when the work was put back.
func (c *committer) lookUp(ctx context.Context, w *work) bool {
	var open []*dedup.Fold
	for _, s := range w.logs {
		if s.fold.Open() {
			open = append(open, &s.fold)
		}
	}
	if len(open) > 0 && !c.askPostgres(ctx, w, open) {
		return false
	}
	for _, s := range w.logs {
		c.p.metrics.looked(&s.fold)
	}
	return true
}

func (c *committer) askPostgres(ctx context.Context, w *work, open []*dedup.Fold) bool {
	err := c.p.withConn(ctx, c.p.commits, func(conn *pgxpool.Conn) error {
		return c.p.log.LookUp(ctx, conn.Conn(), c.p.settings, open...)
	})
	if err != nil {
		c.unanswered(ctx, w, err)
		return false
	}
	fits := true
	for _, s := range w.logs {
		if s.fold.Open() { // the log's segments are not the view's any more
			s.scope.stale, fits = true, false
		}
	}
	if !fits {
		c.back(w)
		return false
	}
	return true
}

// add appends a slice's records to the batch. It returns false at the first record
// that stops the partition; what came before is committed.
func (c *committer) add(p *part, recs []*kgo.Record) bool {
	for _, r := range recs {
		if r.Offset < p.to { // covered by the position, or by the slice before
			continue
		}
		if !r.Attrs.IsControl() {
			if p.stop = c.misplaced(r); p.stop != nil {
				return false
			}
			c.append(p, r)
		}
		p.to, p.leaderEpoch = r.Offset+1, r.LeaderEpoch
		switch {
		case !r.Timestamp.After(time.UnixMilli(0)), !r.Timestamp.Before(c.horizon): // none, or it does not count
			p.timeless = true
		case r.Timestamp.After(p.newest):
			p.newest = r.Timestamp
		}
	}
	return true
}

// append decodes one record into the batch and fingerprints its key.
func (c *committer) append(p *part, r *kgo.Record) {
	b, i := &c.batch, len(c.batch.Records)
	b.Records = append(b.Records, record(r, p.q.claim.Partition.Topic))
	b.Values = append(b.Values, c.blank...)
	row := b.Row(i)
	if err := c.decoder.Decode(&b.Records[i], row); err != nil {
		var f *stream.Fault
		if !errors.As(err, &f) {
			f = &stream.Fault{Stage: stream.StageDecode, Reason: "undecodable", Detail: err.Error()}
		}
		c.fault(i, *f)
		p.log.fold.AddKeyless()
		return
	}
	key := row[c.p.keyAt:]
	if len(key) == 0 {
		p.log.fold.AddKeyless()
		return
	}
	fp, err := c.hasher.Key(key...)
	switch {
	case err == nil:
		p.log.fold.Add(fp)
	case c.p.cfg.KeyMissing == KeyCoordinates && (errors.Is(err, dedup.ErrMissing) || errors.Is(err, dedup.ErrNull)):
		p.log.fold.Add(c.hasher.Coordinates(p.q.claim.Partition, r.Offset))
	default:
		c.fault(i, stream.Fault{Stage: stream.StageKey, Reason: err.Error(), Detail: "business key " + c.p.keyText()})
		p.log.fold.AddKeyless()
	}
}

func (c *committer) fault(i int, f stream.Fault) {
	f.Index = i
	c.faults = append(c.faults, f)
}

// misplaced checks that a keyed record is on the partition its Kafka key hashes to
// under the stored count: scope partition is exact only while a key always comes
// on one partition.
func (c *committer) misplaced(r *kgo.Record) *rebalance.Cause {
	p := c.p
	t := p.topics[r.Topic]
	if len(p.cfg.Key) == 0 || t.Scope == stream.ScopeTopic || p.cfg.Partitioner == dedup.PartitionerNone {
		return nil
	}
	if r.Key == nil {
		if p.cfg.AllowNullKey {
			return nil
		}
		return &rebalance.Cause{
			Code: "null_kafka_key",
			Text: fmt.Sprintf("the record at offset %d has no Kafka key: its business key may come on any partition", r.Offset),
			Fix:  "let producers key by the business key, or set null_kafka_key: allow if they place it consistently",
		}
	}
	n := t.Partitions
	if p.cfg.Partitioner.Partition(r.Key, n) == r.Partition {
		return nil
	}
	return &rebalance.Cause{
		Code: "partitioner",
		Text: fmt.Sprintf("the Kafka key of the record at offset %d does not belong on this partition under %s and %d partitions", r.Offset, p.cfg.Partitioner, n),
		Fix:  "set partitioner to what the producers use",
	}
}

// fits adds to a partitioner's cause which known partitioner the polled keys fit.
func (p *Processor) fits(c rebalance.Cause, part *part) rebalance.Cause {
	if c.Code != "partitioner" {
		return c
	}
	var keys [][]byte
	for _, recs := range part.recs {
		for _, r := range recs {
			if r.Key != nil && !r.Attrs.IsControl() {
				keys = append(keys, r.Key)
			}
		}
	}
	n := p.topics[part.q.name.Topic].Partitions
	switch fit := dedup.Fitting(keys, part.q.name.Number, n); {
	case len(fit) > 0:
		c.Fix = fmt.Sprintf("the %d keys at hand fit partitioner: %s", len(keys), fit[0])
	default:
		c.Fix = fmt.Sprintf("the %d keys at hand fit no known partitioner with %d partitions: if partitions were added, set scope: topic and run processor pipeline migrate; or another producer writes here", len(keys), n)
	}
	return c
}

// encode has the sink encode every record that may be applied and chooses the
// winners. When a winner is refused its next copy takes its place; a refused copy
// of a record that is applied is a duplicate, not dead.
func (c *committer) encode(w *work) {
	c.batch.Skip = append(c.batch.Skip[:0], c.dead...)
	for _, p := range w.parts {
		for i := p.lo; i < p.hi; i++ {
			c.batch.Skip[i] = c.dead[i] || p.log.fold.Duplicate(i)
		}
	}
	unfit := map[int]stream.Fault{}
	for _, f := range c.p.sink.Encode(&c.batch, 0) {
		unfit[f.Index] = f
	}
	for again := true; again; {
		again = false
		c.pick(w)
		for _, i := range c.picks {
			if f, ok := unfit[i]; ok {
				c.bury(f)
				again = true
			}
		}
	}
}

// pick fills picks with the records to apply: of each key the first that is alive.
func (c *committer) pick(w *work) {
	c.picks = c.picks[:0]
	for _, s := range w.logs {
		c.picks = s.fold.Winners(c.picks, s.lo, s.hi, func(i int) bool { return c.dead[i] }, nil)
	}
}

// bury marks a record dead for a reason; it becomes a dead letter.
func (c *committer) bury(f stream.Fault) {
	if !c.dead[f.Index] {
		c.dead[f.Index] = true
		c.faults = append(c.faults, f)
	}
}

// letters are the batch's dead letters. A record that repeats the log is a
// duplicate, whatever else is wrong with it.
func (c *committer) letters() []sink.Letter {
	letters := make([]sink.Letter, len(c.faults))
	for i, f := range c.faults {
		letters[i] = sink.Letter{Record: c.batch.Records[f.Index], Fault: f}
	}
	return letters
}

// tellDead logs a committed part's dead letters in one line: where they are and how
// many of each kind, nothing of what is in them.
func (c *committer) tellDead(p *part) {
	kinds := map[string]int{}
	var first, last int64
	count := 0
	for _, f := range c.faults {
		if f.Index < p.lo || f.Index >= p.hi {
			continue
		}
		at := c.batch.Records[f.Index].Offset
		if count == 0 {
			first, last = at, at
		}
		first, last = min(first, at), max(last, at)
		kinds[string(f.Stage)+"/"+f.Reason]++
		count++
	}
	if count > 0 {
		c.p.say(p.q).Warn().Int64("first", first).Int64("last", last).Int("count", count).Any("reasons", kinds).Msg("dead letters")
	}
}

func zeroed(b []bool, n int) []bool {
	b = append(b[:0], make([]bool, n)...)
	return b
}
