package processor_test

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/internal/cuttest"
	"effectonce/internal/kafkatest"
	"effectonce/pkg/processor"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// wire is a hook that knows the pipeline's client and counts its looks at the ends.
type wire struct {
	client atomic.Pointer[kgo.Client]
	looks  atomic.Int64
}

func (w *wire) OnNewClient(c *kgo.Client) { w.client.Store(c) }

func (w *wire) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, _ kgo.BrokerE2E) {
	if kmsg.Key(key) == kmsg.ListOffsets {
		w.looks.Add(1)
	}
}

func (w *world) wired() *wire {
	h := &wire{}
	w.cfg.Kafka = append(w.cfg.Kafka, kgo.WithHooks(h))
	return h
}

// rebuilds is how often the client was made anew.
func (w *world) rebuilds() string {
	_, rest, _ := strings.Cut(w.get("/metrics"), "\neffectonce_client_rebuilds_total ")
	n, _, _ := strings.Cut(rest, "\n")
	return n
}

// B72: the client does not fetch a partition any more, and nobody is told. The
// watchdog sees lag and nothing fetched, says so, and makes the client anew.
func TestAClientThatFetchesNothingIsMadeAnew(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.admin(t)
	log := &lines{}
	w.cfg.Logger, w.cfg.StalledAfter = w.cfg.Logger.Output(log), time.Second
	h := w.wired()
	w.produce(t, "a")
	first, second := w.at(t, 1), w.at(t, 3)
	paused := false
	w.run(t, func() bool {
		if !paused && first() {
			h.client.Load().PauseFetchPartitions(map[string][]int32{w.topic: {0}})
			w.produce(t, "b", "c")
			paused = true
		}
		return paused && second() && w.rebuilds() == "1"
	})
	if n := strings.Count(log.String(), "stands still: there is lag"); n != 1 {
		t.Errorf("told %d times", n)
	}
}

// The client gives up a partition whose committed offset Kafka did not tell: it is
// assigned, and never fetched.
func TestAPartitionThatWasNeverArmedIsAssignedAnew(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	w.cfg.StalledAfter = 300 * time.Millisecond
	w.fake.ControlKey(int16(kmsg.OffsetFetch), kafkatest.RefuseOffset(1, kerr.NotLeaderForPartition))
	var ids []string
	for i := range 20 {
		ids = append(ids, strconv.Itoa(i))
	}
	w.produce(t, ids...)
	all := w.at(t, 20)
	w.run(t, func() bool { return all() && w.rebuilds() == "1" })
}

// B20: a handler does not return, and does not look at its context either. Its
// partition is reported, the others go on, and a shutdown leaves it behind.
func TestAHandlerThatDoesNotReturn(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 4)
	w.admin(t)
	w.cfg.Table, w.cfg.Committers, w.cfg.BatchRecords = nil, 2, 10
	w.cfg.HandlerTimeout, w.cfg.BatchTime, w.cfg.StalledAfter, w.cfg.DrainTime = 100*time.Millisecond, 200*time.Millisecond, 300*time.Millisecond, 500*time.Millisecond
	returns := make(chan struct{})
	var left sync.WaitGroup
	defer left.Wait()
	defer close(returns)
	w.cfg.Handler = func(_ context.Context, _ sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			if string(r.Key) == "hangs" {
				left.Add(1)
				defer left.Done()
				<-returns
			}
		}
		return nil, nil
	}
	w.produce(t, "hangs")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, w.cfg) }()
	await := func(what func() bool) {
		for !what() {
			select {
			case err := <-ended:
				t.Fatalf("the pipeline ended early: %v", err)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	await(func() bool { return strings.Contains(w.get("/readyz"), "its batch does not come back") })
	ids := make([]string, 200)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	w.produce(t, ids...)
	await(func() bool {
		return w.count(t, "SELECT count(*) FROM "+w.db.Relation("positions")+" WHERE next_offset > 0") == 3
	})
	cancel()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "left behind") {
		t.Errorf("Run returned %v", err)
	}
}

// B72: nothing is made anew for what cannot be read, or is not asked for.
func TestTheWatchdogLeavesAloneWhatHasAReason(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(*testing.T, *world) (held func() bool){
		"stopped": func(t *testing.T, w *world) func() bool {
			w.cfg.StopAfter = 1
			w.db.Exec(t, "ALTER TABLE "+w.orders()+" ADD CHECK (amount < 0)")
			w.produce(t, "a", "b")
			return w.stopped("poison_flood")
		},
		"blocked": func(t *testing.T, w *world) func() bool {
			writer := w.writer(t)
			w.begin(t, writer, "a", "b")
			t.Cleanup(func() { _ = writer.EndTransaction(context.WithoutCancel(t.Context()), kgo.TryAbort) }) // the topic goes
			return func() bool { return w.get("/readyz") == "200 ok\n" }
		},
		"full": func(t *testing.T, w *world) func() bool {
			w.cfg.Table, w.cfg.BatchBytes, w.cfg.Inflight, w.cfg.HandlerTimeout = nil, 500, 500, time.Minute
			w.cfg.Handler = func(ctx context.Context, _ sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			w.cfg.DrainTime = time.Second
			w.produce(t, "a", "a", "a", "a") // on one partition
			more := false
			return func() bool {
				metrics := w.get("/metrics")
				full := strings.Contains(metrics, "\neffectonce_inflight_full_total ") && !strings.Contains(metrics, "\neffectonce_inflight_full_total 0\n")
				if full && !more {
					w.produce(t, "b", "c", "d", "e", "f", "g", "h", "i") // on the other as well, where it is not polled
					more = true
				}
				return more
			}
		},
		"database down": func(t *testing.T, w *world) func() bool {
			u, err := url.Parse(w.db.RuntimeDSN)
			if err != nil {
				t.Fatal(err)
			}
			way := cuttest.Start(t, net.JoinHostPort(u.Hostname(), u.Port()))
			u.Host = way.Addr()
			if w.cfg.Postgres, err = pgxpool.ParseConfig(u.String()); err != nil {
				t.Fatal(err)
			}
			w.cfg.DrainTime = time.Second
			w.produce(t, "a")
			first, cut := w.at(t, 1), false
			return func() bool {
				if !cut && first() {
					way.Cut()
					w.produce(t, "b", "c")
					cut = true
				}
				return cut
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onKafka(t, 2)
			w.admin(t)
			w.cfg.StalledAfter = 500 * time.Millisecond
			h := w.wired()
			held, at, before := hold(t, w), int64(0), ""
			w.run(t, func() bool {
				if at == 0 {
					if held() {
						at, before = h.looks.Load(), w.rebuilds()
					}
					return false
				}
				if h.looks.Load() < at+12 { // two a look
					return false
				}
				if now := w.rebuilds(); now != before {
					t.Errorf("the client was made anew: %s, then %s times", before, now)
				}
				return true
			})
		})
	}
}
