package processor

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/pkg/dedup"
)

// Views are looked at again in these bounds, so that quiet ones expire too.
const (
	agesAtLeast = 10 * time.Second
	agesAtMost  = 10 * time.Minute
)

// ageEvery is how often: a key outlives its window of expiry by a quarter.
func ageEvery(retention time.Duration) time.Duration {
	return min(max(dedup.Window(retention)/4, agesAtLeast), agesAtMost)
}

// age has every view tended now and then: nobody commits to a quiet one, and its
// keys expire as well.
func (p *Processor) age(ctx context.Context) error {
	if p.cfg.DedupRetention == 0 {
		return nil
	}
	tick := time.NewTicker(ageEvery(p.cfg.DedupRetention))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			p.list.tendAll()
		}
	}
}

// tendAll puts every view on the list of those to be worked on.
func (l *list) tendAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.scopes {
		if !s.loading {
			l.tendTo(s)
		}
	}
}

// expire seals what has waited for a whole window, since only segments expire, and
// lets those die that are beyond the retention.
func (k keeper) expire(ctx context.Context) error {
	retention := k.p.cfg.DedupRetention
	if retention == 0 {
		return nil
	}
	waited, err := k.p.log.Unsealed(ctx, k.conn.Conn(), k.p.settings, k.v)
	if err != nil {
		return err
	}
	if waited > dedup.Window(retention) {
		if err := k.sealNow(ctx); err != nil {
			return err
		}
	}
	keys, err := k.p.log.Expire(ctx, k.conn.Conn(), k.p.settings, k.v, retention, k.ends(ctx))
	if err == nil && keys > 0 {
		k.p.metrics.expired.Add(float64(keys))
		k.p.aboutScope(k.scope).Info().Int64("keys", keys).Msg("keys expired")
	}
	return err
}

// ends asks Kafka where the partitions of a shared log end: members know the lag of
// their own alone. Without an answer the slowest partition decides, also an idle one.
func (k keeper) ends(ctx context.Context) map[int32]int64 {
	if !k.scope.shared() {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	listed, err := kadm.NewClient(k.p.client).ListEndOffsets(limited, k.scope.topic)
	if err != nil {
		k.p.aboutScope(k.scope).Debug().Err(err).Msg("ends of the partitions not known")
	}
	ends := map[int32]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			ends[o.Partition] = o.Offset
		}
	})
	return ends
}
