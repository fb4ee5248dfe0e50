package sink

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"effectonce/internal/pgtx"
)

func (c *TableConfig) table() string { return quote(c.Schema, c.Name) }

// list quotes the mapped columns.
func (c *TableConfig) list(prefix string) string {
	var b strings.Builder
	for i, col := range c.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(prefix)
		b.WriteString(quote(col.Name))
	}
	return b.String()
}

func (c *TableConfig) copySQL() string {
	return "COPY " + c.table() + " (" + c.list("") + ") FROM STDIN (FORMAT binary)"
}

// insertSQL takes one array a column: never more binds than a table has columns.
// The casts to the columns' own types are assignments, which refuse a text that
// is too long; an explicit cast to varchar(n) would cut it.
func (c *TableConfig) insertSQL() string {
	var b strings.Builder
	b.WriteString("INSERT INTO " + c.table() + " (" + c.list("") + ") SELECT * FROM unnest(")
	for i := range c.Columns {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "$%d", i+1)
	}
	b.WriteString(")")
	if c.Mode != Upsert {
		return b.String()
	}
	var set []string
	for _, col := range c.Columns {
		if !slices.Contains(c.Conflict, col.Name) {
			set = append(set, quote(col.Name)+" = excluded."+quote(col.Name))
		}
	}
	conflict := make([]string, len(c.Conflict))
	for i, name := range c.Conflict {
		conflict[i] = quote(name)
	}
	b.WriteString(" ON CONFLICT (" + strings.Join(conflict, ", ") + ") DO ")
	if len(set) == 0 {
		b.WriteString("NOTHING")
	} else {
		b.WriteString("UPDATE SET " + strings.Join(set, ", "))
	}
	return b.String()
}

// arrays transposes rows of the COPY format into one array a column: an element
// of a binary array and a column of a binary row are the same bytes.
func (s *shape) arrays(rows [][]byte) []pgtx.Param {
	const header = 20 // dimensions, has-null flag, element type, length, lower bound
	sizes := make([]int, len(s.columns))
	total := 0
	for _, row := range rows {
		at := 2
		for i := range sizes {
			n := fieldLen(row[at:])
			sizes[i] += n
			at += n
		}
		total += len(row)
	}
	backing := make([]byte, 0, total+header*len(sizes))
	arrays := make([][]byte, len(sizes))
	for i, size := range sizes {
		array := backing[len(backing) : len(backing) : len(backing)+header+size]
		backing = backing[:len(backing)+header+size]
		for _, v := range [...]uint32{1, 1, s.columns[i].element, uint32(len(rows)), 1} {
			array = binary.BigEndian.AppendUint32(array, v)
		}
		arrays[i] = array
	}
	for _, row := range rows {
		at := 2
		for i := range arrays {
			n := fieldLen(row[at:])
			arrays[i] = append(arrays[i], row[at:at+n]...)
			at += n
		}
	}
	params := make([]pgtx.Param, len(arrays))
	for i, array := range arrays {
		params[i] = pgtx.Binary(s.columns[i].array, array)
	}
	return params
}

// fieldLen is the size of the field p begins with, its length included.
func fieldLen(p []byte) int {
	n := int32(binary.BigEndian.Uint32(p))
	return 4 + int(max(n, 0))
}
