package sink_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

type letterRow struct {
	TopicID                            [16]byte
	Partition                          int32
	Offset                             int64
	Topic, Stage, Code, Reason, Detail string
	RecordTime                         *time.Time
	Key, Value                         []byte
	HeaderNames, HeaderValues          [][]byte
	State                              string
	Attempts                           int
	FirstBefore                        bool
}

func letterRows(t *testing.T, db *pgtest.DB) []letterRow {
	t.Helper()
	r, err := db.Owner.Query(t.Context(), `SELECT topic_id, partition, "offset", topic, stage, code, reason, detail, record_time,
		key, value, header_names, header_values, state, attempts, first_at < last_at FROM `+db.Relation("dead_letters")+
		` WHERE pipeline = 7 ORDER BY topic_id, partition, "offset"`)
	if err != nil {
		t.Fatal(err)
	}
	out, err := pgx.CollectRows(r, pgx.RowToStructByPos[letterRow])
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func writeLetters(t *testing.T, db *pgtest.DB, conn *pgx.Conn, letters ...sink.Letter) {
	t.Helper()
	stmt, ok := sink.DeadLetters(db.Schema, 7, letters)
	if !ok || stmt.Step != pgtx.StepWrite {
		t.Fatalf("statement %v of step %q", ok, stmt.Step)
	}
	if err := pgtx.Once(t.Context(), conn, pgtx.DefaultSettings, stmt); err != nil {
		t.Fatal(err)
	}
}

// TestDeadLettersAreExact: bytes, null and empty, repeated headers and their
// order; and whatever the texts hold, the row can be written.
func TestDeadLettersAreExact(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	p := stream.Partition{Topic: stream.UUID{1}, Number: 3}
	at := time.Date(2024, 5, 6, 7, 8, 9, 123_000_000, time.UTC)
	long := strings.Repeat("x", 1<<20)
	letters := []sink.Letter{
		{stream.Record{Topic: "orders", Partition: p, Offset: 12, Timestamp: at, Key: []byte{}, Value: []byte("\x00\xff{"),
			Headers: []stream.Header{{Key: "a", Value: []byte("1")}, {Key: "a", Value: []byte("2")}, {Key: "b"}, {Key: "c", Value: []byte{}},
				{Key: "", Value: []byte("empty name")}, {Key: "\xff\x00", Value: []byte{0}}}},
			stream.Fault{Stage: stream.StageDecode, Reason: "not_json", Detail: "bad \xff and \x00"}},
		{stream.Record{Topic: "orders", Partition: p, Offset: 11, Timestamp: time.UnixMilli(math.MaxInt64), Key: nil, Value: nil,
			Headers: []stream.Header{{Key: "only", Value: nil}}},
			stream.Fault{Stage: stream.StageEffect, Code: "23505", Reason: "unique_violation"}},
		{stream.Record{Topic: "x\x00", Partition: stream.Partition{Topic: stream.UUID{0xff}, Number: math.MaxInt32}, Offset: math.MaxInt64,
			Timestamp: time.UnixMilli(-1), Value: []byte(long)},
			stream.Fault{Stage: stream.StageKey, Reason: "missing_key"}},
		{stream.Record{Topic: "orders", Partition: stream.Partition{Topic: stream.UUID{1}, Number: 2}, Offset: 99, Value: []byte("v")},
			stream.Fault{Stage: stream.StageEncode, Reason: "out_of_range"}},
	}
	writeLetters(t, db, conn, letters...)
	before := time.UnixMilli(-1).UTC()
	want := []letterRow{
		{TopicID: [16]byte{1}, Partition: 2, Offset: 99, Topic: "orders", Stage: "encode", Reason: "out_of_range", Value: []byte("v"),
			HeaderNames: [][]byte{}, HeaderValues: [][]byte{}, State: "open", Attempts: 1},
		{TopicID: [16]byte{1}, Partition: 3, Offset: 11, Topic: "orders", Stage: "effect", Code: "23505", Reason: "unique_violation",
			HeaderNames: [][]byte{[]byte("only")}, HeaderValues: [][]byte{nil}, State: "open", Attempts: 1},
		{TopicID: [16]byte{1}, Partition: 3, Offset: 12, Topic: "orders", Stage: "decode", Reason: "not_json", Detail: "bad \uFFFD and \uFFFD",
			RecordTime: &at, Key: []byte{}, Value: []byte("\x00\xff{"),
			HeaderNames:  [][]byte{[]byte("a"), []byte("a"), []byte("b"), []byte("c"), {}, []byte("\xff\x00")},
			HeaderValues: [][]byte{[]byte("1"), []byte("2"), nil, {}, []byte("empty name"), {0}}, State: "open", Attempts: 1},
		{TopicID: [16]byte{0xff}, Partition: math.MaxInt32, Offset: math.MaxInt64, Topic: "x\uFFFD", Stage: "key", Reason: "missing_key",
			RecordTime: &before, Value: []byte(long), HeaderNames: [][]byte{}, HeaderValues: [][]byte{}, State: "open", Attempts: 1},
	}
	if diff := cmp.Diff(want, letterRows(t, db)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A replay or a rewind meets a record again: it is open again, with the newest
// fault, and nothing of it is lost.
func TestDeadLetterAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	r := stream.Record{Topic: "t", Offset: 5, Key: []byte("k"), Value: []byte("v"), Headers: []stream.Header{{Key: "h"}}}
	writeLetters(t, db, conn, sink.Letter{r, stream.Fault{Stage: stream.StageDecode, Reason: "first"}})
	db.Exec(t, "UPDATE "+db.Relation("dead_letters")+" SET state = 'dropped'")
	writeLetters(t, db, conn,
		sink.Letter{r, stream.Fault{Stage: stream.StageDecode, Reason: "second"}},
		sink.Letter{r, stream.Fault{Stage: stream.StageEffect, Code: "23514", Reason: "third", Detail: "d"}})
	want := []letterRow{{Topic: "t", Offset: 5, Stage: "effect", Code: "23514", Reason: "third", Detail: "d", Key: []byte("k"), Value: []byte("v"),
		HeaderNames: [][]byte{[]byte("h")}, HeaderValues: [][]byte{nil}, State: "open", Attempts: 2, FirstBefore: true}}
	if diff := cmp.Diff(want, letterRows(t, db)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := sink.DeadLetters(db.Schema, 7, nil); ok {
		t.Error("a statement for no letters")
	}
}

// brianc/node-postgres#2292: more rows than a statement can have bind values.
func TestManyDeadLetters(t *testing.T) {
	t.Parallel()
	const many = 70_000
	db := pgtest.New(t)
	letters := make([]sink.Letter, many)
	for i := range letters {
		letters[i] = sink.Letter{
			Record: stream.Record{Topic: "t", Offset: int64(many - i), Headers: []stream.Header{{Key: "h", Value: []byte("v")}}},
			Fault:  stream.Fault{Stage: stream.StageDecode, Reason: "not_json"},
		}
	}
	writeLetters(t, db, db.Conn(t), letters...)
	if got := texts(t, db, `SELECT count(*) || ' ' || sum(cardinality(header_names)) FROM `+db.Relation("dead_letters")); got[0] != "70000 70000" {
		t.Errorf("letters and headers: %s", got[0])
	}
}
