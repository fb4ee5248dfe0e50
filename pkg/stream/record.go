package stream

import "time"

// Header is one Kafka record header. A nil Value is null, an empty one is not.
type Header struct {
	Key   string
	Value []byte
}

// Record is one Kafka record with its coordinates. Key, Value and header values
// alias the fetched batch: whoever keeps one past the commit copies it.
type Record struct {
	Topic       string // name, for people
	Partition   Partition
	Offset      int64
	LeaderEpoch int32
	Timestamp   time.Time
	Key         []byte // nil is null
	Value       []byte // nil is null, a tombstone
	Headers     []Header
}

// Kind tells what a Value is.
type Kind uint8

// The kinds of a Value. Missing (the path, header or key is not there) and Null
// (it is there and null) are different things.
const (
	Missing Kind = iota
	Null
	Text   // Data is valid UTF-8, unescaped
	Number // Data is the JSON number as written: exact, never through float64
	Bool   // Data is "true" or "false"
	JSON   // Data is the JSON text of an object or array
	Bytes  // Data is a header's or the Kafka key's bytes
	Time   // Data is RFC 3339 with nanoseconds, UTC: the record's own timestamp
)

var kindNames = [...]string{"missing", "null", "text", "number", "boolean", "json", "bytes", "time"}

func (k Kind) String() string { return kindNames[k] }

// Value is one decoded field. Data may alias the record or a batch's buffer and
// is valid until the batch is done.
type Value struct {
	Kind Kind
	Data []byte
}

// Batch is what one transaction applies: records of one or several partitions,
// in offset order within each partition, with their decoded values and, once
// the sink encoded them, their encoded rows. One committer owns it and reuses
// its buffers.
type Batch struct {
	Records []Record
	Width   int     // values per record
	Values  []Value // len(Records) × Width, row-major
	Skip    []bool  // records that get no row: duplicates and dead ones; empty skips none

	Encoded []byte // rows one after another, written by the sink's Encode
	Ends    []int  // end of row i in Encoded; an empty row has a fault
	Layout  uint64 // the picture of the table that Encoded was written for; the sink's own
}

// Row returns the values of record i.
func (b *Batch) Row(i int) []Value { return b.Values[i*b.Width : (i+1)*b.Width] }

// Bytes returns the encoded row of record i, empty if the sink refused it.
func (b *Batch) Bytes(i int) []byte {
	if i == 0 {
		return b.Encoded[:b.Ends[0]]
	}
	return b.Encoded[b.Ends[i-1]:b.Ends[i]]
}

// Reset empties the batch for records of width values each and keeps the buffers.
func (b *Batch) Reset(width int) {
	clear(b.Records)
	clear(b.Values)
	b.Records, b.Values, b.Width = b.Records[:0], b.Values[:0], width
	b.Encoded, b.Ends, b.Layout, b.Skip = b.Encoded[:0], b.Ends[:0], 0, b.Skip[:0]
}
