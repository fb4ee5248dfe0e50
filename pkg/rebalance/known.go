package rebalance

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Keys is the dedup memory of a pipeline.
type Keys struct {
	Pipeline  int64 // its id
	Retention time.Duration
	Offsets   *offsets.Store
	Log       *dedup.Store
}

// Known is from where on the memory knows the key of each record of a partition that
// was applied. Below, one that is read again may be applied again.
type Known struct {
	Changed bool      // keys were forgotten with a key rule that is over
	Rule    int64     // the first offset under the rule in force, if so
	Horizon time.Time // dedup.retention may have forgotten what is older; zero: nothing
	Young   int64     // the first offset of a record that is not older, if so
}

// From is the offset from which on everything is known.
func (k Known) From() int64 { return max(k.Rule, k.Young) }

// Known asks what is known of a partition whose position is next. Times are those of
// the records.
func (k Keys) Known(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, adm *kadm.Client, topic string, p stream.Partition, next int64) (Known, error) {
	known, begins := Known{}, next // where the rule in force has no run yet, it knows nothing
	var progress time.Time         // the furthest of those that share a log
	err := pgtx.Once(ctx, conn, set,
		k.Offsets.Standings(k.Pipeline, []string{topic}, func(s offsets.Standing) {
			if s.Topic.ID == p.Topic && (s.Partition == p || s.Topic.Scope == stream.ScopeTopic) && s.Progress.After(progress) {
				progress = s.Progress
			}
		}),
		k.Offsets.Forgot(k.Pipeline, p.Topic, func() { known.Changed = true }),
		k.Log.Begins(k.Pipeline, p, func(first int64) { begins = first }))
	if err != nil {
		return known, err
	}
	if known.Changed {
		known.Rule = begins
	}
	if k.Retention == 0 || progress.IsZero() {
		return known, nil
	}
	known.Horizon = progress.Add(-k.Retention)
	if known.Young, err = OffsetAfter(ctx, adm, Name{topic, p.Number}, known.Horizon); err != nil {
		return known, fmt.Errorf("kafka: %w", err)
	}
	return known, nil
}
