package sink

import (
	"cmp"
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
// open again. Headers come flat, one row each with the number of its letter:
// arrays of arrays would have to be rectangular.
const writeLetters = `
INSERT INTO @schema@.dead_letters AS d (pipeline, topic_id, partition, "offset", topic, stage, code, reason, detail,
    record_time, key, value, header_names, header_values)
SELECT $1, u.topic_id, u.partition, u."offset", u.topic, u.stage, u.code, u.reason, u.detail, u.record_time, u.key, u.value,
       coalesce(h.names, '{}'), coalesce(h.contents, '{}')
FROM unnest($2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12) WITH ORDINALITY
  AS u (topic_id, partition, "offset", topic, stage, code, reason, detail, record_time, key, value, n)
LEFT JOIN (SELECT r.letter, array_agg(r.name ORDER BY r.n) AS names, array_agg(r.content ORDER BY r.n) AS contents
           FROM unnest($13, $14, $15) WITH ORDINALITY AS r (letter, name, content, n)
           GROUP BY r.letter) h ON h.letter = u.n
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
			pgtx.Int8s(a.letters), pgtx.Byteas(a.names), pgtx.Byteas(a.contents),
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

	letters         []int64 // number of the letter a header belongs to, from 1
	names, contents [][]byte
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
	for _, h := range r.Headers {
		a.letters = append(a.letters, int64(len(a.offsets)))
		a.names = append(a.names, []byte(h.Key))
		a.contents = append(a.contents, h.Value)
	}
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
