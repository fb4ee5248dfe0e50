package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
)

// deadLetter is what a dead letter must say about its record.
type deadLetter struct {
	Offset              int64
	Stage, Code, Reason string
	Key, Value          []byte
	Names, Contents     [][]byte
}

// Records that cannot be applied become dead letters with everything a person
// needs to mend them; all others around them are applied.
func TestPoison(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 51)
	w.db.Exec(t, "ALTER TABLE "+w.effects+" ADD note text, ADD ref text UNIQUE")
	w.columns = ", note: note, ref: ref"
	good := func(n int, ref string) []byte {
		b, err := json.Marshal(map[string]any{"event_id": fmt.Sprintf("g%d", n), "account": "a", "seq": n, "delta": 1, "note": "fine", "ref": ref})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	poison := []struct {
		value, stage, code, reason string
	}{
		{`{"event_id":"p0"`, "decode", "", "not_json"},
		{`no json at all`, "decode", "", "not_json"},
		{`["p1"]`, "decode", "", "not_object"},
		{`{"account":"a","seq":1,"delta":1,"note":"n","ref":"r1"}`, "key", "", "missing_key"},
		{`{"event_id":"p2","event_id":"p3","account":"a","seq":1,"delta":1,"note":"n","ref":"r2"}`, "decode", "", "duplicate_name"},
		{"{\"event_id\":\"p4\",\"account\":\"\xff\",\"seq\":1,\"delta\":1,\"note\":\"n\",\"ref\":\"r3\"}", "decode", "", "bad_utf8"},
		{`{"event_id":"p5","account":"a","seq":1,"delta":1,"note":"a\u0000b","ref":"r4"}`, "encode", "", "nul_in_text"},
		{`{"event_id":"p6","account":"a","seq":1,"delta":9223372036854775808,"note":"n","ref":"r5"}`, "encode", "", "out_of_range"},
		{`{"event_id":"p7","account":"a","seq":1,"delta":1,"note":"n","ref":"ref-0"}`, "effect", "23505", "unique_violation"},
	}
	var recs []*kgo.Record
	var want []deadLetter
	for i, p := range poison {
		recs = append(recs, &kgo.Record{Topic: w.topic, Key: []byte("a"), Value: good(i, fmt.Sprintf("ref-%d", i))})
		want = append(want, deadLetter{
			int64(len(recs)), p.stage, p.code, p.reason, []byte("a"), []byte(p.value),
			[][]byte{[]byte("expect"), []byte("none"), []byte("raw")}, [][]byte{[]byte("dead"), nil, {0xff, 0}},
		})
		recs = append(recs, &kgo.Record{Topic: w.topic, Key: []byte("a"), Value: []byte(p.value), Headers: []kgo.RecordHeader{
			{Key: "expect", Value: []byte("dead")}, {Key: "none"}, {Key: "raw", Value: []byte{0xff, 0}},
		}})
	}
	// The record out of range comes again, repaired: it is no duplicate.
	recs = append(recs, &kgo.Record{Topic: w.topic, Key: []byte("a"), Value: []byte(`{"event_id":"p6","account":"a","seq":1,"delta":2,"note":"n","ref":"r5"}`)})
	kafkatest.Produce(t, recs...)
	w.start()
	w.exact("with poison", w.drained())

	rows, err := w.db.Owner.Query(t.Context(), `SELECT "offset", stage, code, reason, key, value, header_names, header_values
		FROM `+w.db.Relation("dead_letters")+` WHERE topic = $1 AND partition = 0 AND state = 'open' ORDER BY "offset"`, w.topic)
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[deadLetter])
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("dead letters (-want +got):\n%s", diff)
	}
}
