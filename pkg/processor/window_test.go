package processor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/processor"
	"effectonce/pkg/stream"
)

// reading is what a device sent: the two make its business key.
type reading struct{ device, taken int }

// readings sends records of ten devices, one each three seconds since base, to
// partition 0.
func (w *world) readings(t *testing.T, base time.Time, from, to int) {
	t.Helper()
	recs := make([]*kgo.Record, 0, to-from)
	for n := from; n < to; n++ {
		r := reading{n % 10, n}
		recs = append(recs, &kgo.Record{
			Topic: w.topic, Key: []byte("k"), Timestamp: base.Add(time.Duration(n) * 3 * time.Second),
			Value: fmt.Appendf(nil, `{"order_id":"d%d","amount":%d}`, r.device, r.taken),
		})
	}
	client := kafkatest.Client(t, w.broker, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// A sliding window is a short retention: device and time make the key, readings are
// repeated within an hour or not at all. In scope topic an idle partition does not
// keep the window from sliding.
func TestSlidingWindow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		scope      stream.Scope
		partitions int32
	}{{stream.ScopePartition, 1}, {stream.ScopeTopic, 2}} {
		t.Run(string(c.scope), func(t *testing.T) {
			t.Parallel()
			const sent = 7200 // six hours
			w := newWorld(t, c.partitions)
			w.admin(t)
			w.cfg.Key, w.cfg.Scope, w.cfg.Partitioner = []string{"order_id", "amount"}, c.scope, "none"
			w.cfg.DedupRetention, w.cfg.ShortRetention = time.Hour, true
			w.cfg.DedupMemory, w.cfg.BatchRecords = 2, 100
			base := time.Now().Add(-6 * time.Hour)
			w.readings(t, base, 0, sent)
			w.run(t, w.at(t, sent))

			segments := w.db.Relation("segments")
			w.run(t, func() bool { // the window is as far as it can come
				return w.count(t, "SELECT count(*) FROM "+segments+" WHERE state = 'live' AND newest < $1", base.Add(4*time.Hour)) == 0 &&
					w.count(t, "SELECT count(*) FROM "+segments+" WHERE state = 'live'") > 0 &&
					strings.Contains(w.get("/metrics"), "effectonce_oldest_key_seconds")
			})

			w.readings(t, base, 0, 100)             // long gone: applied again
			w.readings(t, base, sent-1000, sent)    // 50 minutes: known
			w.readings(t, base, sent, sent+100)     // new
			w.readings(t, base, sent-100, sent+100) // known
			w.run(t, w.at(t, sent+1400))
			for device, want := range map[string]int64{"amount < 100": 200, "amount >= 100": sent} {
				if n := w.count(t, "SELECT count(*) FROM "+w.orders()+" WHERE "+device); n != want {
					t.Errorf("%s: %d rows, want %d", device, n, want)
				}
			}
		})
	}
}

// What is too quiet to fill an exact set is sealed by its age, and expires.
func TestAQuietTopicExpires(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.DedupRetention, w.cfg.ShortRetention = time.Hour, true
	w.cfg.Key, w.cfg.Partitioner = []string{"order_id", "amount"}, "none"
	base := time.Now().Add(-6 * time.Hour)
	w.readings(t, base, 0, 10)
	w.run(t, w.at(t, 10))
	w.db.Exec(t, "UPDATE "+w.db.Relation("runs")+" SET committed_at = committed_at - interval '10 minutes'")
	segments := "SELECT count(*) FROM " + w.db.Relation("segments") + " WHERE state = 'live'"
	w.run(t, func() bool { return w.count(t, segments) == 1 })
	for n := range 2 { // progress is what a second batch has reached too
		w.readings(t, base, 6000+n, 6001+n)
		w.run(t, w.at(t, int64(11+n)))
	}
	w.run(t, func() bool { return w.count(t, segments) == 0 })
}

// The records of a topic may be read again as long as they are there. With keys
// that are forgotten earlier the start is refused, unless that is wanted.
func TestAShortRetentionIsRefused(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		retention time.Duration
		configs   []string
		allow     bool
		says      string // empty: it runs
	}{
		"shorter":          {time.Hour, []string{"retention.ms=7200000"}, false, "dedup.retention is 1h0m0s, and with retention.ms 7200000 records stay for 2h0m0s"},
		"as long":          {2 * time.Hour, []string{"retention.ms=7200000"}, false, ""},
		"for ever":         {0, []string{"retention.ms=-1"}, false, ""},
		"records for ever": {time.Hour, []string{"retention.ms=-1"}, false, "with retention.ms -1 records stay for ever"},
		"compacted":        {999 * time.Hour, []string{"cleanup.policy=compact", "retention.ms=1000"}, false, "with cleanup.policy compact records stay for ever"},
		"both":             {2 * time.Hour, []string{"cleanup.policy=compact,delete", "retention.ms=7200000"}, false, ""},
		"allowed":          {time.Hour, []string{"retention.ms=7200000"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.broker = kafkatest.Broker(t)
			w.topic = kafkatest.Topic(t, 1, c.configs...)
			var log strings.Builder
			w.cfg.Kafka, w.cfg.Topics, w.cfg.Group = []kgo.Opt{kgo.SeedBrokers(w.broker)}, []string{w.topic}, w.topic
			w.cfg.DedupRetention, w.cfg.ShortRetention = c.retention, c.allow
			w.cfg.Logger = zerolog.New(zerolog.SyncWriter(&log)).Level(zerolog.WarnLevel)
			if c.says != "" {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := processor.Run(ctx, w.cfg)
				if !errors.Is(err, processor.ErrConfig) || !strings.Contains(err.Error(), c.says) ||
					!strings.Contains(err.Error(), "dedup.allow_short_retention: true") {
					t.Errorf("%v", err)
				}
				return
			}
			w.produce(t, "a", "b", "a")
			w.run(t, w.at(t, 3))
			if told := strings.Count(log.String(), "keys may expire before the records"); told > 1 || told == 1 != c.allow {
				t.Errorf("told %d times: %s", told, log.String())
			}
		})
	}
}
