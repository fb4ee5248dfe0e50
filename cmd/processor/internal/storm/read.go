package storm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// drained reports whether both groups have everything behind them, and how much that is.
func (p *play) drained(ctx context.Context) (done bool, sum int64, err error) {
	ends, total, err := p.ends(ctx, p.name)
	if err != nil {
		return false, 0, err
	}
	sum, done = p.watch.total(), len(ends) > 0 && p.watch.total() >= total
	if p.naiveRate == 0 {
		return done, sum, nil
	}
	_, total, err = p.ends(ctx, p.naiveTopic())
	if err != nil {
		return false, 0, err
	}
	offsets, err := p.kafka.FetchOffsets(ctx, p.naiveTopic())
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return false, 0, fmt.Errorf("offsets of the naive group: %w", err)
	}
	var theirs int64
	offsets.Each(func(o kadm.OffsetResponse) { theirs += max(0, o.At) })
	return done && theirs >= total, sum + theirs, nil
}

// ends are the end offsets of a topic, and their sum.
func (p *play) ends(ctx context.Context, topic string) (ends map[int32]int64, total int64, err error) {
	listed, err := p.kafka.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("end offsets: %w", err)
	}
	ends = map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		ends[o.Partition] = o.Offset
		total += o.Offset
	})
	return ends, total, nil
}

// read reads a topic from its beginning to its end, without a group.
func (p *play) read(ctx context.Context, topic string) (*ledger, error) {
	ends, total, err := p.ends(ctx, topic)
	if err != nil {
		return nil, err
	}
	from := map[int32]kgo.Offset{}
	for part := range ends {
		from[part] = kgo.NewOffset().At(0)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(p.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchMaxWait(250*time.Millisecond))
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	defer client.Close()
	l, read := newLedger(p.seed), int64(0)
	for read < total {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("read %s: %w", topic, err)
		}
		var strange error
		fetches.EachRecord(func(r *kgo.Record) {
			read++
			if !l.record(r.Partition, r.Offset, string(r.Key)) {
				strange = fmt.Errorf("read %s: the key %q of %d/%d is no order of this storm", topic, r.Key, r.Partition, r.Offset)
			}
		})
		if strange != nil {
			return nil, strange
		}
	}
	return l, nil
}

// tally holds a table against a topic.
func (p *play) tally(ctx context.Context, topic, table string) (*ledger, Tally, error) {
	l, err := p.read(ctx, topic)
	if err != nil {
		return nil, Tally{}, err
	}
	rows, err := p.db.Query(ctx, "SELECT seq, coalesce(kafka_partition, -1), coalesce(kafka_offset, -1), coalesce(order_id, '') FROM "+
		p.relation(p.data(), table))
	if err != nil {
		return nil, Tally{}, fmt.Errorf("effects: %w", err)
	}
	c := l.check()
	var e effect
	if _, err := pgx.ForEachRow(rows, []any{&e.seq, &e.part, &e.offset, &e.key}, func() error {
		c.effect(e)
		return nil
	}); err != nil {
		return nil, Tally{}, fmt.Errorf("effects: %w", err)
	}
	return l, c.end(), nil
}
