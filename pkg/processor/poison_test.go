package processor_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
)

// letters are the dead letters as (offset, stage, code, reason).
func (w *world) letters(t *testing.T) (out []string) {
	t.Helper()
	rows, err := w.db.Owner.Query(t.Context(), `SELECT partition, "offset", stage, code, reason FROM `+
		w.db.Relation("dead_letters")+` ORDER BY 1, 2`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var partition, offset int64
		var stage, code, reason string
		if err := rows.Scan(&partition, &offset, &stage, &code, &reason); err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%d/%d %s %s %s", partition, offset, stage, code, reason))
	}
	return out
}

// produceDocs writes documents to partition 0, each under a Kafka key of its own.
func (w *world) produceDocs(t *testing.T, docs ...string) {
	t.Helper()
	recs := make([]*kgo.Record, len(docs))
	for i, d := range docs {
		recs[i] = &kgo.Record{Topic: w.topic, Key: []byte(fmt.Sprint(i)), Value: []byte(d)}
	}
	kafkatest.ProduceTo(t, w.broker, recs...)
}

func (w *world) at(t *testing.T, n int64) func() bool {
	return func() bool {
		return w.count(t, "SELECT coalesce(sum(next_offset), 0) FROM "+w.db.Relation("positions")) == n
	}
}

func TestBadRecordsBecomeDeadLetters(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.db.Exec(t, "ALTER TABLE "+w.orders()+" ADD CHECK (amount < 1000)")
	w.produceDocs(t,
		`{"order_id":"a","amount":1}`,
		`not json`,
		`{"order_id":"b","amount":99999999999999999999}`,
		`{"amount":1}`,
		`{"order_id":"c","order_id":"d","amount":1}`,
		`{"order_id":"e\u0000","amount":1}`,
		"{\"order_id\":\"\xff\",\"amount\":1}",
		`{"order_id":"f","amount":5000}`, // refused by the table
		`{"order_id":null,"amount":1}`,
		`{"order_id":"g","amount":2}`,
		`{"order_id":"a","amount":3}`, // repeats the first
		`{"order_id":"f","amount":6}`, // a repaired copy takes the dead one's place
		`{"order_id":"h","amount":7000}`,
		`{"order_id":"i","amount":4}`,
	)
	log := &lines{}
	w.cfg.Logger = zerolog.New(log)
	w.run(t, w.at(t, 14))
	log.tellDead(t)
	want := []string{
		"0/1 decode  not_json",
		"0/2 encode  out_of_range",
		"0/3 key  missing_key",
		"0/4 decode  duplicate_name",
		"0/5 encode  nul_in_text",
		"0/6 decode  bad_utf8",
		"0/7 effect 23514 check_violation",
		"0/8 key  null_key",
		"0/12 effect 23514 check_violation",
	}
	if diff := cmp.Diff(want, w.letters(t)); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
	var rows string
	if err := w.db.Owner.QueryRow(t.Context(), "SELECT string_agg(order_id || '=' || amount, ' ' ORDER BY ctid) FROM "+
		w.orders()).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	if rows != "a=1 g=2 f=6 i=4" {
		t.Errorf("rows %q", rows)
	}
	// The audit row says what happened to each record.
	var read, applied, duplicate, dead int64
	if err := w.db.Owner.QueryRow(t.Context(), "SELECT sum(read), sum(applied), sum(duplicate), sum(dead) FROM "+
		w.db.Relation("audit")).Scan(&read, &applied, &duplicate, &dead); err != nil {
		t.Fatal(err)
	}
	if read != 14 || applied != 4 || duplicate != 1 || dead != 9 {
		t.Errorf("audit: read %d, applied %d, duplicate %d, dead %d", read, applied, duplicate, dead)
	}
}

// lines are the log of a run.
type lines struct {
	mu   sync.Mutex
	text []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, p...)
	return len(p), nil
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(l.text)
}

// tellDead requires the log to name the dead letters of that topic, by kind, and no
// record's content.
func (l *lines) tellDead(t *testing.T) {
	t.Helper()
	count, first, last := 0, int64(100), int64(0)
	reasons := map[string]int{}
	for line := range strings.Lines(l.String()) {
		var got struct {
			Level   string         `json:"level"`
			Message string         `json:"message"`
			Topic   string         `json:"topic"`
			First   int64          `json:"first"`
			Last    int64          `json:"last"`
			Count   int            `json:"count"`
			Reasons map[string]int `json:"reasons"`
		}
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if got.Message != "dead letters" {
			continue
		}
		if got.Level != "warn" || got.Topic != "orders" || strings.Contains(line, "5000") {
			t.Error(line)
		}
		count, first, last = count+got.Count, min(first, got.First), max(last, got.Last)
		for kind, n := range got.Reasons {
			reasons[kind] += n
		}
	}
	want := map[string]int{
		"decode/not_json": 1, "decode/duplicate_name": 1, "decode/bad_utf8": 1, "encode/out_of_range": 1, "encode/nul_in_text": 1,
		"key/missing_key": 1, "key/null_key": 1, "effect/check_violation": 2,
	}
	if diff := cmp.Diff(want, reasons); diff != "" || count != 9 || first != 1 || last != 12 {
		t.Errorf("%d dead letters in [%d, %d] are told (-want +got):\n%s", count, first, last, diff)
	}
}

// A producer stamps what it likes: a time no timestamptz can hold must neither
// stop the partition nor become its newest record time.
func TestRecordTimesBeyondReason(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	now := time.Now().Truncate(time.Millisecond)
	for i, at := range []time.Time{now, time.UnixMilli(1 << 61), now.Add(24 * time.Hour), time.UnixMilli(-(1 << 61)), time.UnixMilli(-1)} {
		kafkatest.ProduceTo(t, w.broker, &kgo.Record{
			Topic: w.topic, Key: []byte{byte(i)}, Timestamp: at, Value: fmt.Appendf(nil, `{"order_id":"%d","amount":1}`, i),
		})
	}
	w.run(t, w.at(t, 5))
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != 5 {
		t.Errorf("%d rows, want 5", n)
	}
	var newest time.Time
	if err := w.db.Owner.QueryRow(t.Context(), "SELECT last_record_time FROM "+w.db.Relation("positions")).Scan(&newest); err != nil {
		t.Fatal(err)
	}
	if !newest.Equal(now) {
		t.Errorf("newest record time %s, want %s", newest, now)
	}
}
