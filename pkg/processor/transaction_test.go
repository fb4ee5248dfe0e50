package processor_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
)

// writer is a producer of Kafka transactions on the world's topic.
func (w *world) writer(t *testing.T) *kgo.Client {
	t.Helper()
	return kafkatest.Client(t, w.broker, kgo.TransactionalID("writer of "+w.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
}

// begin writes records to partition 0 in a transaction that it leaves open.
func (w *world) begin(t *testing.T, writer *kgo.Client, ids ...string) {
	t.Helper()
	if err := writer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		r := &kgo.Record{Topic: w.topic, Key: []byte(id), Value: []byte(fmt.Sprintf(`{"order_id":%q,"amount":1}`, id))}
		if err := writer.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func end(t *testing.T, writer *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := writer.EndTransaction(t.Context(), how); err != nil {
		t.Fatal(err)
	}
}

// sample is a sample of partition 0 in /metrics, -1 if there is none.
func (w *world) sample(name string) float64 {
	for line := range strings.Lines(w.get("/metrics")) {
		var v float64
		if n, err := fmt.Sscanf(line, fmt.Sprintf("effectonce_%s{partition=\"0\",topic=%q} %%g", name, w.topic), &v); err == nil && n == 1 {
			return v
		}
	}
	return -1
}

// A producer never ends its transaction: the stable offset stands still while the log
// grows. That is told apart from slowness, once, with who it is, and the partition
// stays ready: a restart would end nothing. When the transaction ends, so does that.
func TestAHangingTransactionIsToldApartFromSlowness(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.admin(t)
	log := &lines{}
	w.cfg.Logger = zerolog.New(log)
	w.cfg.BlockedAfter = 500 * time.Millisecond
	writer := w.writer(t)
	w.begin(t, writer, "a", "b", "c")
	end(t, writer, kgo.TryCommit)
	w.begin(t, writer, "d", "e", "f", "g", "h")
	const blocked, free = "blocked: what lies behind", "not blocked any more"
	ended := false
	w.run(t, func() bool {
		if !ended && strings.Contains(log.String(), blocked) {
			if n := w.sample("blocked_records"); n != 5 {
				t.Errorf("blocked_records is %g, want 5", n)
			}
			verbose := w.get("/readyz?verbose")
			for _, want := range []string{"200 ok", "blocked at the last stable offset 4 since 20", "5 offsets behind it", fmt.Sprintf("transactional id %q", "writer of "+w.topic)} {
				if !strings.Contains(verbose, want) {
					t.Errorf("/readyz?verbose does not say %q:\n%s", want, verbose)
				}
			}
			if lag := w.sample("lag_records"); lag != 0 {
				t.Errorf("lag %g, though everything that may be read is applied", lag)
			}
			ended = true
			end(t, writer, kgo.TryCommit)
		}
		return ended && strings.Contains(log.String(), free) && w.sample("blocked_records") == 0 && w.sample("lag_records") == 0
	})
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 8 {
		t.Errorf("%d rows, want 8", n)
	}
	if strings.Count(log.String(), blocked) != 1 || strings.Count(log.String(), free) != 1 {
		t.Errorf("not told once each:\n%s", log.String())
	}
}
