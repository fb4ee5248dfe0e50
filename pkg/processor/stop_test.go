package processor_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/dedup"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// admin gives the pipeline an admin address of its own.
func (w *world) admin(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w.cfg.Admin = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// get asks the admin address; empty while it does not listen.
func (w *world) get(path string) string {
	resp, err := http.Get("http://" + w.cfg.Admin + path)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, text)
}

// stopped waits until /readyz names this cause for a stopped partition.
func (w *world) stopped(cause string) func() bool {
	return func() bool {
		answer := w.get("/readyz?verbose")
		return strings.HasPrefix(answer, "503 ") && strings.Contains(answer, " stopped ") && strings.Contains(answer, cause)
	}
}

func TestAFloodOfRefusalsStopsWithoutDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	w.cfg.StopAfter = 5
	w.db.Exec(t, "ALTER TABLE "+w.orders()+" ADD CHECK (amount < 0)") // the set-up's fault
	var docs []string
	for i := range 50 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d","amount":1}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.stopped("poison_flood: 5 effects in a row failed alone, from offset 0 to 4,"))
	if got := w.letters(t); len(got) > 0 {
		t.Errorf("the topic was emptied into dead letters: %v", got)
	}
	if !w.at(t, 0)() {
		t.Error("the position moved")
	}
}

func TestFewerRefusalsThanAFloodDoNotStop(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.StopAfter = 5
	w.db.Exec(t, "ALTER TABLE "+w.orders()+" ADD CHECK (amount < 10)")
	var docs []string
	for i := range 60 { // four in a row, then a good one
		amount := 50
		if i%5 == 4 {
			amount = 1
		}
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d","amount":%d}`, i, amount))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.at(t, 60))
	if got := len(w.letters(t)); got != 48 {
		t.Errorf("%d dead letters, want 48", got)
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 12 {
		t.Errorf("%d rows, want 12", n)
	}
}

// A right that is taken away while the pipeline runs shares its SQLSTATE with a
// row that row-level security refuses; it must not empty the topic.
func TestAMissingRightStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	w.produce(t, "a")
	var role string
	if err := w.db.Runtime.QueryRow(t.Context(), "SELECT current_user").Scan(&role); err != nil {
		t.Fatal(err)
	}
	revoke := sync.OnceFunc(func() {
		w.db.Exec(t, `REVOKE INSERT ON `+w.orders()+` FROM "`+role+`"`)
		w.produce(t, "b")
	})
	w.run(t, func() bool {
		if !w.at(t, 1)() {
			return false
		}
		revoke()
		return w.stopped("42501")()
	})
	if got := w.letters(t); len(got) > 0 {
		t.Errorf("a missing right made dead letters: %v", got)
	}
}

// A key that hashes to another partition than it came on may be applied on each.
func TestARecordOnTheWrongPartitionStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.admin(t)
	var recs []*kgo.Record
	for i := range 40 { // as librdkafka places them: crc32
		key := []byte(fmt.Sprintf("k%d", i))
		n := crcPartition(key, 4)
		recs = append(recs, &kgo.Record{
			Topic: w.topic, Partition: n, Key: key, Value: []byte(fmt.Sprintf(`{"order_id":%q,"amount":1}`, key)),
		})
	}
	client := kafkatest.Client(t, w.broker, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.run(t, w.stopped("fit partitioner: crc32"))
	w.cfg.Partitioner = "crc32" // what the message said
	w.run(t, w.at(t, 40))
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 40 {
		t.Errorf("%d keys, want 40", n)
	}
}

func TestARecordWithoutKafkaKeyStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	kafkatest.ProduceTo(t, w.broker, &kgo.Record{Topic: w.topic, Value: []byte(`{"order_id":"a","amount":1}`)})
	w.run(t, func() bool {
		if !w.stopped("null_kafka_key")() {
			return false
		}
		for _, path := range []string{"/readyz", "/readyz?verbose"} {
			if answer := w.get(path); strings.Count(answer, "has no Kafka key") != 1 { // not twice
				t.Errorf("%s\n%s", path, answer)
			}
		}
		return true
	})
	w.cfg.AllowNullKey = true
	w.run(t, w.at(t, 1))
}

// One partition's handler fails for ever; the others, in the same transaction at
// first, go on.
func TestAFailingPartitionDoesNotHoldTheOthers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4)
	w.cfg.Table = nil
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			if r.Partition.Number == 2 {
				_, err := tx.Exec(ctx, "SELECT pg_catalog.pg_terminate_backend(pg_catalog.pg_backend_pid())")
				return nil, err
			}
		}
		_, err := tx.Exec(ctx, "INSERT INTO "+w.orders()+" (order_id, amount) SELECT 'x', n FROM generate_series(1, $1::int) n", len(records))
		return nil, err
	}
	for n := range int32(4) {
		client := kafkatest.Client(t, w.broker, kgo.RecordPartitioner(kgo.ManualPartitioner()))
		for i := range 10 {
			r := &kgo.Record{Topic: w.topic, Partition: n, Key: []byte{byte(i)}, Value: []byte(fmt.Sprintf(`{"order_id":"%d-%d"}`, n, i))}
			if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	w.cfg.Partitioner = "none"
	w.run(t, w.at(t, 30))
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 30 {
		t.Errorf("%d rows, want 30", n)
	}
}

// B20: a handler that takes too long on one record loses its session each time; the
// record becomes a dead letter and the others apply once.
func TestAHandlerThatHangsOnOneRecord(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.Table, w.cfg.HandlerTimeout = nil, 150*time.Millisecond
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			if _, err := tx.Exec(ctx, "INSERT INTO "+w.orders()+" (order_id, amount) VALUES ($1, 1)", string(r.Key)); err != nil {
				return nil, err
			}
			if string(r.Key) == "5" {
				if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_sleep(60)"); err != nil {
					return nil, err
				}
			}
		}
		return nil, nil
	}
	var docs []string
	for i := range 12 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d"}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.at(t, 12))
	if got := w.letters(t); len(got) != 1 || !strings.HasPrefix(got[0], "0/5 effect") {
		t.Errorf("dead letters: %v", got)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 11 || w.count(t, "SELECT count(*) FROM "+w.orders()) != 11 {
		t.Errorf("%d keys", n)
	}
}

// B20: so many records take too long that the search for them does not end within a
// batch's time. The batch becomes smaller until it does, and is not tried for ever.
func TestASearchThatTakesLongerThanABatchMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.Table, w.cfg.HandlerTimeout, w.cfg.BatchTime, w.cfg.BatchRecords = nil, 60*time.Millisecond, 600*time.Millisecond, 36
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			if n, err := strconv.Atoi(string(r.Key)); err != nil || n%3 == 0 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+w.orders()+" (order_id, amount) VALUES ($1, 1)", string(r.Key)); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	var docs []string
	for i := range 36 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d"}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.at(t, 36))
	if n := len(w.letters(t)); n != 12 {
		t.Errorf("%d dead letters", n)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != 24 || w.count(t, "SELECT count(*) FROM "+w.orders()) != 24 {
		t.Errorf("%d keys", n)
	}
}

func TestHandlerErrorsAndRejections(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.cfg.Table = nil
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		var rejected []sink.Rejection
		for _, r := range records {
			switch string(r.Key) {
			case "3":
				rejected = append(rejected, sink.Reject(r, "not wanted"))
			case "6":
				return nil, errors.New("no such account")
			case "8":
				panic("a bug on this record")
			}
			if _, err := tx.Exec(ctx, "INSERT INTO "+w.orders()+" (order_id, amount) VALUES ($1, 1)", string(r.Key)); err != nil {
				return nil, err
			}
		}
		return rejected, nil
	}
	var docs []string
	for i := range 10 {
		docs = append(docs, fmt.Sprintf(`{"order_id":"o%d"}`, i))
	}
	w.produceDocs(t, docs...)
	w.run(t, w.at(t, 10))
	got := w.letters(t)
	if len(got) != 3 {
		t.Fatalf("dead letters: %v", got)
	}
	for i, offset := range []string{"0/3 ", "0/6 ", "0/8 "} {
		if !strings.HasPrefix(got[i], offset+"effect") {
			t.Errorf("dead letter %d: %s", i, got[i])
		}
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 7 {
		t.Errorf("%d rows, want 7", n)
	}
}

func TestSmuggledCommitStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	w.cfg.Table = nil
	w.cfg.Handler = func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
		_, err := tx.Exec(ctx, "/* quietly */ commit")
		return nil, err
	}
	w.produce(t, "a")
	w.run(t, w.stopped("setup"))
	if !w.at(t, 0)() {
		t.Error("the position moved")
	}
}

func crcPartition(key []byte, n int32) int32 { return dedup.CRC32.Partition(key, n) }
