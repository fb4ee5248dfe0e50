package processor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
)

// applied are the keys in the table, in the order they were written.
func (w *world) applied(t *testing.T) []string {
	t.Helper()
	rows, err := w.db.Owner.Query(t.Context(), "SELECT order_id FROM "+w.orders()+" ORDER BY ctid")
	if err != nil {
		t.Fatal(err)
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// position is the position of partition 0, -1 before there is one.
func (w *world) position(t *testing.T) int64 {
	t.Helper()
	return w.count(t, "SELECT coalesce(max(next_offset), -1) FROM "+w.db.Relation("positions"))
}

// B04: records of an aborted Kafka transaction are not applied, without any setting,
// also where a fetch holds them between committed ones of the same producer. Who asks
// for uncommitted ones gets them.
func TestAbortedRecordsAreNotApplied(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dirty bool
		want  []string
	}{
		"no setting":       {false, []string{"a", "c"}},
		"read_uncommitted": {true, []string{"a", "b", "c"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := onKafka(t, 1)
			w.cfg.Dirty = c.dirty
			writer := w.writer(t)
			for i, id := range []string{"a", "b", "c"} {
				w.begin(t, writer, id)
				end(t, writer, kgo.TransactionEndTry(i != 1))
			}
			w.run(t, func() bool { return w.position(t) == 6 }) // three records, three markers
			if diff := cmp.Diff(c.want, w.applied(t)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// B01: a fetch that holds aborted records only still moves the position, past the
// marker; what comes behind is applied.
func TestAFetchOfAbortedRecordsMovesThePosition(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	writer := w.writer(t)
	w.begin(t, writer, "a", "b", "c")
	end(t, writer, kgo.TryAbort)
	sent := false
	w.run(t, func() bool {
		if !sent && w.position(t) == 4 {
			sent = true
			w.produce(t, "d")
		}
		return w.position(t) == 5
	})
	if diff := cmp.Diff([]string{"d"}, w.applied(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// B01: a compacted topic has holes. Every record that is left is applied once, and
// the position is the offset behind the last one, not a count.
func TestACompactedTopicHasHoles(t *testing.T) {
	t.Parallel()
	broker := kafkatest.StartPrivate(t, map[string]string{"log.cleaner.backoff.ms": "50"})
	w := onBroker(t, broker.Addr, 1, "cleanup.policy=compact", "segment.ms=1", "min.cleanable.dirty.ratio=0.001")
	const sent, rounds = 1000, 20
	client := kafkatest.Client(t, w.broker)
	for round := range rounds { // each in a segment of its own
		var recs []*kgo.Record
		for i := round * sent / rounds; i < (round+1)*sent/rounds; i++ {
			recs = append(recs, &kgo.Record{
				Topic: w.topic, Key: fmt.Appendf(nil, "key-%d", i%10), Value: fmt.Appendf(nil, `{"order_id":"o-%d","amount":%d}`, i, i),
			})
		}
		if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	var left []string
	for left = w.left(t, sent); len(left) > sent/2; left = w.left(t, sent) {
		t.Logf("%d records are left", len(left))
	}
	// The cleaner may take more away until the pipeline has read it: what it applies is
	// some of what was left, and the last record of each key, which stays for ever.
	w.run(t, func() bool { return w.position(t) == sent })
	got := w.applied(t)
	if !slices.IsSortedFunc(got, func(a, b string) int { return number(t, a) - number(t, b) }) {
		t.Errorf("out of order, or twice: %v", got)
	}
	for _, id := range got {
		if !slices.Contains(left, id) {
			t.Errorf("%s was applied, though it was gone", id)
		}
	}
	for _, id := range w.left(t, sent) {
		if !slices.Contains(got, id) {
			t.Errorf("%s is there and was not applied", id)
		}
	}
}

// left are the ids of the records that a topic still has, read up to its end.
func (w *world) left(t *testing.T, to int64) (ids []string) {
	t.Helper()
	client := kafkatest.Client(t, w.broker, kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{w.topic: {0: kgo.NewOffset().At(0)}}))
	defer client.Close()
	for {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range fetches.Records() {
			id, _, _ := strings.Cut(strings.TrimPrefix(string(r.Value), `{"order_id":"`), `"`)
			ids = append(ids, id)
			if r.Offset == to-1 { // the last one is never cleaned away
				return ids
			}
		}
	}
}

func number(t *testing.T, id string) int {
	t.Helper()
	var n int
	if _, err := fmt.Sscanf(id, "o-%d", &n); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
	return n
}

// B02: nothing is left to read behind a marker, so there is no lag: neither by our
// metric nor, once the group's offset follows, by Kafka's tools; also when the last
// transaction was aborted. And a topic at rest is left at rest.
func TestNoLagIsLeftBehindAMarker(t *testing.T) {
	t.Parallel()
	w := onKafka(t, 1)
	w.admin(t)
	writer := w.writer(t)
	ten := ids(0, 10)
	w.begin(t, writer, ten...)
	end(t, writer, kgo.TryCommit)
	var aborted bool
	var row string
	var since time.Time
	w.run(t, func() bool {
		switch {
		case w.sample("lag_records") != 0: // Kafka was not asked yet, or there is some
		case w.position(t) == 11 && !aborted:
			aborted = true
			w.begin(t, writer, ids(10, 15)...)
			end(t, writer, kgo.TryAbort)
		case w.position(t) == 17 && row == "":
			row, since = w.version(t), time.Now()
		case row != "":
			return time.Since(since) > 3*time.Second // for as long, nothing happens
		}
		return false
	})
	if now := w.version(t); now != row {
		t.Errorf("the position of a topic at rest was written: %s, then %s", row, now)
	}
	if diff := cmp.Diff(ten, w.applied(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	adm := kadm.NewClient(kafkatest.Client(t, w.broker))
	committed, err := adm.FetchOffsets(t.Context(), w.cfg.Group)
	if err != nil {
		t.Fatal(err)
	}
	ends, err := adm.ListEndOffsets(t.Context(), w.topic)
	if err != nil {
		t.Fatal(err)
	}
	at, _ := committed.Lookup(w.topic, 0)
	if end, ok := ends.Lookup(w.topic, 0); !ok || at.At != end.Offset {
		t.Errorf("the group's offset is %d, the topic's end %d", at.At, end.Offset)
	}
}

// version tells whether anything was committed: what wrote the position, and how many
// runs there are.
func (w *world) version(t *testing.T) string {
	t.Helper()
	var v string
	if err := w.db.Owner.QueryRow(t.Context(), "SELECT xmin::text || ' ' || (SELECT count(*) FROM "+w.db.Relation("runs")+") FROM "+
		w.db.Relation("positions")).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}
