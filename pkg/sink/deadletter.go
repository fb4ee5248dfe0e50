package sink

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Letter is a record that cannot be applied, and why.
type Letter struct {
	Record stream.Record
	Fault  stream.Fault
}

// writeLetters adds the letters in the order of their coordinates. A record that
// was refused before, met again by a replay or after the database went back, is
// open again. The headers of a letter come as the text form of a bytea[]: arrays
// of arrays would have to be rectangular, and a join of two flat lists takes a
// plan that the planner, who does not know how long they are, gets wrong.
const writeLetters = `
INSERT INTO @schema@.dead_letters AS d (pipeline, topic_id, partition, "offset", topic, stage, code, reason, detail,
    record_time, key, value, header_names, header_values)
SELECT $1, u.topic_id, u.partition, u."offset", u.topic, u.stage, u.code, u.reason, u.detail, u.record_time, u.key, u.value,
       u.header_names::bytea[], u.header_values::bytea[]
FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
  AS u (topic_id, partition, "offset", topic, stage, code, reason, detail, record_time, key, value, header_names, header_values)
ORDER BY u.topic_id, u.partition, u."offset"
ON CONFLICT (pipeline, topic_id, partition, "offset") DO UPDATE
SET state = 'open', attempts = d.attempts + 1, last_at = now(), topic = excluded.topic, stage = excluded.stage,
    code = excluded.code, reason = excluded.reason, detail = excluded.detail, record_time = excluded.record_time,
    key = excluded.key, value = excluded.value, header_names = excluded.header_names,
    header_values = excluded.header_values`

// DeadLetters returns the one statement that writes letters into the schema's
// dead_letters, for the transaction that moves the positions past them. It is
// false when there is nothing to write. Of two letters for one record the later
// counts. The records' bytes are only read until the statement has run.
func DeadLetters(schema string, pipeline int64, letters []Letter) (pgtx.Statement, bool) {
	if len(letters) == 0 {
		return pgtx.Statement{}, false
	}
	sorted := slices.Clone(letters)
	slices.SortStableFunc(sorted, compareLetters)
	var a letterArrays
	for i := range sorted {
		if i+1 < len(sorted) && compareLetters(sorted[i], sorted[i+1]) == 0 {
			continue
		}
		a.add(&sorted[i])
	}
	return pgtx.Statement{Step: pgtx.StepWrite, SQL: strings.ReplaceAll(writeLetters, "@schema@", quote(schema)),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUIDs(a.topicIDs), pgtx.Int4s(a.partitions), pgtx.Int8s(a.offsets),
			pgtx.Texts(a.topics), pgtx.Texts(a.stages), pgtx.Texts(a.codes), pgtx.Texts(a.reasons), pgtx.Texts(a.details),
			pgtx.Times(a.times), pgtx.Byteas(a.keys), pgtx.Byteas(a.values),
			pgtx.Texts(a.names), pgtx.Texts(a.contents),
		}}, true
}

func compareLetters(x, y Letter) int {
	if c := x.Record.Partition.Compare(y.Record.Partition); c != 0 {
		return c
	}
	return cmp.Compare(x.Record.Offset, y.Record.Offset)
}

// letterArrays are the columns of the statement.
type letterArrays struct {
	topicIDs                                []stream.UUID
	partitions                              []int32
	offsets                                 []int64
	topics, stages, codes, reasons, details []string
	times                                   []time.Time
	keys, values                            [][]byte
	names, contents                         []string // of headers, a bytea[] each
}

func (a *letterArrays) add(l *Letter) {
	r, f := &l.Record, &l.Fault
	a.topicIDs = append(a.topicIDs, r.Partition.Topic)
	a.partitions = append(a.partitions, r.Partition.Number)
	a.offsets = append(a.offsets, r.Offset)
	a.topics = append(a.topics, printable(r.Topic))
	a.stages = append(a.stages, string(f.Stage))
	a.codes = append(a.codes, printable(f.Code))
	a.reasons = append(a.reasons, printable(f.Reason))
	a.details = append(a.details, printable(f.Detail))
	a.times = append(a.times, storable(r.Timestamp))
	a.keys = append(a.keys, r.Key)
	a.values = append(a.values, r.Value)
	names, contents := []byte{'{'}, []byte{'{'}
	for i, h := range r.Headers {
		if i > 0 {
			names, contents = append(names, ','), append(contents, ',')
		}
		names = appendElement(names, []byte(h.Key))
		contents = appendElement(contents, h.Value)
	}
	a.names = append(a.names, string(append(names, '}')))
	a.contents = append(a.contents, string(append(contents, '}')))
}

// appendElement appends an element of a bytea[] in text form.
func appendElement(dst, value []byte) []byte {
	if value == nil {
		return append(dst, "NULL"...)
	}
	dst = append(dst, `"\\x`...)
	dst = hex.AppendEncode(dst, value)
	return append(dst, '"')
}

// printable makes s text that Postgres takes.
func printable(s string) string {
	const replacement = "\uFFFD"
	s = strings.ToValidUTF8(s, replacement)
	return strings.ReplaceAll(s, "\x00", replacement)
}

// storable is t, or the zero time where Postgres has no such year: a producer may
// stamp anything, and its dead letter must not fail for it.
func storable(t time.Time) time.Time {
	const last = 294276
	if t.Year() < 1 || t.Year() >= last {
		return time.Time{}
	}
	return t
}
