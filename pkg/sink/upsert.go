package sink

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/pkg/stream"
)

// latest returns the last row of each table key among picks, ordered by the
// key's bytes: the one order in which all transactions lock the table's rows.
func (s *shape) latest(b *stream.Batch, picks []int) [][]byte {
	type keyed struct {
		key  []byte
		pick int
	}
	var size int
	for _, i := range picks {
		size += len(b.Bytes(i))
	}
	arena := make([]byte, 0, size) // a key is never longer than its row
	rows := make([]keyed, len(picks))
	for n, i := range picks {
		start := len(arena)
		arena = s.appendKey(arena, b.Bytes(i))
		rows[n] = keyed{arena[start:], i}
	}
	slices.SortFunc(rows, func(x, y keyed) int {
		if c := bytes.Compare(x.key, y.key); c != 0 {
			return c
		}
		return x.pick - y.pick
	})
	out := make([][]byte, 0, len(rows))
	for n, row := range rows {
		if n+1 < len(rows) && bytes.Equal(row.key, rows[n+1].key) {
			continue // a later one has the word
		}
		out = append(out, b.Bytes(row.pick))
	}
	return out
}

// appendKey appends the conflict columns of a row, such that equal keys have
// equal bytes.
func (s *shape) appendKey(dst, row []byte) []byte {
	at := 2
	for i := range s.columns {
		n := fieldLen(row[at:])
		if s.columns[i].conflict {
			dst = s.columns[i].appendKey(dst, row[at:at+n])
		}
		at += n
	}
	return dst
}

// appendKey appends one column's length and bytes without what Postgres does
// not compare: the digits a numeric displays, the sign of a float's zero, the
// blanks behind a char. Any form it misses ends in SQLSTATE 21000 and is then
// applied record by record.
func (c *column) appendKey(dst, field []byte) []byte {
	const length, display = 4, 6 // where a numeric has its display scale, behind the length
	start := len(dst)
	dst = append(dst, field...)
	value := dst[start+length:]
	switch c.kind {
	case kindNumeric:
		value[display], value[display+1] = 0, 0
	case kindFloat4, kindFloat8:
		if value[0] == 0x80 && len(bytes.Trim(value[1:], "\x00")) == 0 {
			value[0] = 0
		}
	case kindText:
		if c.element == pgtype.BPCharOID {
			dst = dst[:start+length+len(bytes.TrimRight(value, " "))]
			binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-length))
		}
	default: // has one form
	}
	return dst
}
