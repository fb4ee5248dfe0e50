package processor

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/pkg/rebalance"
)

const measureEvery = 5 * time.Second

// measure asks Kafka where the partitions end, and tells of those that a transaction
// blocks and of those that stand still: a high watermark comes only with records, and behind an open transaction
// polls are silent.
func (p *Processor) measure(ctx context.Context) error {
	tick := time.NewTicker(min(measureEvery, p.cfg.BlockedAfter, p.cfg.StalledAfter))
	defer tick.Stop()
	adm := kadm.NewClient(p.client)
	for {
		limited, cancel := context.WithTimeout(ctx, measureEvery)
		err := p.askTails(limited, adm, time.Now())
		if err == nil {
			p.tellBlocked(limited, adm, time.Now())
		} // else the lag keeps its last value; fetching reports what is wrong
		cancel()
		if err := p.look(time.Now(), err == nil); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// askTails asks for the ends of all partitions. The stable ones are asked for last, so
// that a transaction that ends between the two answers leaves nothing behind them.
func (p *Processor) askTails(ctx context.Context, adm *kadm.Client, now time.Time) error {
	ends, err := adm.ListEndOffsets(ctx, p.cfg.Topics...)
	if err != nil {
		return fmt.Errorf("end offsets: %w", err)
	}
	stable := ends
	if !p.cfg.Dirty {
		if stable, err = adm.ListCommittedOffsets(ctx, p.cfg.Topics...); err != nil {
			return fmt.Errorf("last stable offsets: %w", err)
		}
	}
	ends.Each(func(e kadm.ListedOffset) {
		if s, ok := stable.Lookup(e.Topic, e.Partition); ok && e.Err == nil && s.Err == nil {
			n := rebalance.Name{Topic: e.Topic, Number: e.Partition}
			t, _ := p.tails.of(n)
			p.tails.set(n, t.follow(e.Offset, s.Offset, now))
		}
	})
	return nil
}

// tellBlocked says once that a partition is blocked, by whom, and once that it goes
// on. One that went to another member is told of there.
func (p *Processor) tellBlocked(ctx context.Context, adm *kadm.Client, now time.Time) {
	standings, _ := p.list.standings()
	for n, s := range standings {
		t, ok := p.tails.of(n)
		blocked := ok && t.blocked(s.claim.Next, p.cfg.BlockedAfter, now)
		if blocked == t.told {
			continue
		}
		t.told = blocked
		if blocked {
			t.writer = writer(ctx, adm, n, t.stable)
			p.about(s.claim).Warn().Int64("records", t.end-t.stable).Time("since", t.since).Str("writer", t.writer).
				Msg("blocked: what lies behind the last stable offset waits for the end of an open transaction")
		} else {
			p.about(s.claim).Info().Msg("not blocked any more: the transaction ended")
		}
		p.tails.set(n, t)
	}
}

// writer names whose open transaction begins at an offset, as far as Kafka answers and
// this principal may know.
func writer(ctx context.Context, adm *kadm.Client, n rebalance.Name, at int64) string {
	var set kadm.TopicsSet
	set.Add(n.Topic, n.Number)
	described, err := adm.DescribeProducers(ctx, set)
	if err != nil {
		return ""
	}
	for _, w := range described[n.Topic].Partitions[n.Number].ActiveProducers {
		if w.CurrentTxnStartOffset != at {
			continue
		}
		name := fmt.Sprintf("producer %d", w.ProducerID)
		if listed, err := adm.ListTransactions(ctx, []int64{w.ProducerID}, nil); err == nil && len(listed) > 0 {
			name += fmt.Sprintf(", transactional id %q", listed.Sorted()[0].TxnID)
		}
		return name
	}
	return ""
}
