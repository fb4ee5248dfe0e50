package decode

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"effectonce/pkg/stream"
)

// Decoder runs a plan. It belongs to one goroutine and serves one batch at a
// time: [Decoder.Reset], then [Decoder.Decode] for each of the batch's records.
type Decoder struct {
	plan  *Plan
	arena []byte // values that are not in the record as they stand

	// The document at hand.
	json    jsontext.Decoder
	input   bytes.Buffer // over doc; the token reader parses a bytes.Buffer in place
	name    []byte       // scratch for member names with escapes
	doc     []byte
	values  []stream.Value
	counted bool // bounded is known
	bounded bool
}

// NewDecoder returns a decoder with buffers of its own.
func (p *Plan) NewDecoder() *Decoder { return &Decoder{plan: p} }

// keepArena is a size that is never worth giving back.
const keepArena = 64 << 10

// Reset begins a batch: every value decoded so far that did not alias its record
// becomes invalid.
func (d *Decoder) Reset() {
	if cap(d.arena) > keepArena && cap(d.arena)/4 > len(d.arena) {
		d.arena = nil // grown by an exceptional batch
	}
	d.arena = d.arena[:0]
}

// Decode sets dst[i] to the value of the plan's source i; dst must have one
// element for each source, anything else is a mistake of the caller and panics.
//
// Values alias the record, or the decoder's own buffer where something had to be
// written anew (a string with escapes, an offset): they are valid while the
// record is and until [Decoder.Reset]. Nobody may write to them.
//
// The error is a [*stream.Fault] of stage decode: this record is refused, the
// caller sets the fault's Index and goes on with the next one. Reasons:
// tombstone, too_large, not_json, bad_utf8, duplicate_name, not_object, too_deep,
// too_many_members, bad_timestamp. After a fault the sources in the document are
// Missing; those beside it have their values, except a timestamp that is the fault.
func (d *Decoder) Decode(r *stream.Record, dst []stream.Value) error {
	if len(dst) != len(d.plan.sources) {
		panic(fmt.Sprintf("decode: %d values for %d sources", len(dst), len(d.plan.sources)))
	}
	clear(dst)
	var refused *stream.Fault
	for _, i := range d.plan.outside {
		s := &d.plan.sources[i]
		if s.From == Timestamp && !printable(r.Timestamp) {
			refused = fault(badTimestamp, "the record's timestamp is not between the years 0 and 9999")
			continue
		}
		dst[i] = d.beside(s, r)
	}
	if refused == nil && d.plan.root != nil {
		if refused = d.document(r.Value, dst); refused != nil {
			d.forget(d.plan.root, dst)
		}
	}
	if refused != nil {
		return refused
	}
	return nil
}

// forget takes back what a document gave before its fault was met.
func (d *Decoder) forget(n *node, dst []stream.Value) {
	for _, i := range n.takers {
		dst[i] = stream.Value{}
	}
	for _, c := range n.children {
		d.forget(c, dst)
	}
}

// beside reads a value that Kafka keeps beside the document.
func (d *Decoder) beside(s *Source, r *stream.Record) stream.Value {
	switch s.From {
	case Header:
		return header(r.Headers, s.Name)
	case Key:
		return orNull(r.Key)
	case Topic:
		return d.written(stream.Text, append(d.arena, r.Topic...))
	case Partition:
		return d.written(stream.Number, strconv.AppendInt(d.arena, int64(r.Partition.Number), 10))
	case Offset:
		return d.written(stream.Number, strconv.AppendInt(d.arena, r.Offset, 10))
	default: // Timestamp; Field and Document are in the document
		if r.Timestamp.IsZero() || r.Timestamp.UnixMilli() == noTimestamp {
			return stream.Value{Kind: stream.Null}
		}
		return d.written(stream.Time, r.Timestamp.UTC().AppendFormat(d.arena, time.RFC3339Nano))
	}
}

// written takes the arena with one value appended to it. When the arena moved to
// grow, earlier values keep the old memory.
func (d *Decoder) written(k stream.Kind, arena []byte) stream.Value {
	start := len(d.arena)
	d.arena = arena
	return stream.Value{Kind: k, Data: arena[start:len(arena):len(arena)]}
}

// noTimestamp is how Kafka's protocol says that a record has none, in milliseconds.
const noTimestamp = -1

// printable: RFC 3339 has four digits for the year, Kafka's milliseconds reach
// the year 292,278,994.
func printable(t time.Time) bool {
	y := t.UTC().Year()
	return y >= 0 && y <= 9999
}

func header(headers []stream.Header, name string) stream.Value {
	for _, h := range slices.Backward(headers) {
		if h.Key == name {
			return orNull(h.Value)
		}
	}
	return stream.Value{}
}

func orNull(b []byte) stream.Value {
	if b == nil {
		return stream.Value{Kind: stream.Null}
	}
	return stream.Value{Kind: stream.Bytes, Data: b}
}
