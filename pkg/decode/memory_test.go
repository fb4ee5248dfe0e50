package decode_test

import (
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/decode"
	"effectonce/pkg/stream"
)

// A batch's values are used again for the next batch: a member that is missing
// must not keep the value that stood there before.
func TestNothingStaysFromTheRecordBefore(t *testing.T) {
	d := plan(t, decode.Limits{}, "id", "order.id", "kafka:value", "header:h", "kafka:key", "kafka:timestamp").NewDecoder()
	full := record(`{"id":1,"order":{"id":2}}`)
	full.Headers = []stream.Header{{Key: "h", Value: []byte("x")}}
	bare := &stream.Record{Value: []byte(`{"order":{}}`)}
	dst := make([]stream.Value, 6)
	for _, r := range []*stream.Record{full, bare} {
		if err := d.Decode(r, dst); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]stream.Value{missing, missing, nested(`{"order":{}}`), missing, null, null}, dst); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := d.Decode(full, dst); err != nil {
		t.Fatal(err)
	}
	expectFault(t, d.Decode(&stream.Record{}, dst), "tombstone", "no document")
	if diff := cmp.Diff([]stream.Value{missing, missing, missing, missing, null, null}, dst); diff != "" {
		t.Errorf("after a tombstone (-want +got):\n%s", diff)
	}
}

// Values stay as they are while later records of the batch are decoded, however
// often the decoder's buffer has to grow.
func TestValuesLiveForTheBatch(t *testing.T) {
	d := plan(t, decode.Limits{}, "s", "e", "kafka:offset").NewDecoder()
	for range 3 { // the second and third batch reuse what the first has grown
		d.Reset()
		const records = 2000
		got := make([]stream.Value, 3*records)
		for i := range records {
			r := record(`{"s":"plain","e":"esc\u0061ped ` + strings.Repeat("x", i%100) + `"}`)
			r.Offset = int64(i)
			if err := d.Decode(r, got[3*i:3*i+3]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range records {
			want := []stream.Value{text("plain"), text("escaped " + strings.Repeat("x", i%100)), number(strconv.Itoa(i))}
			if diff := cmp.Diff(want, got[3*i:3*i+3]); diff != "" {
				t.Fatalf("record %d (-want +got):\n%s", i, diff)
			}
		}
	}
}

// Whoever appends to a value must not write into its neighbour.
func TestValuesHaveNoRoomToGrow(t *testing.T) {
	r := record(`{"a":"x","b":1,"c":true,"d":[1],"e":"\u0061","f":{"g":1}}`)
	for i, v := range values(t, r, "a", "b", "c", "d", "e", "f", "f.g", "kafka:value", "kafka:topic", "kafka:offset", "kafka:timestamp") {
		if len(v.Data) != cap(v.Data) {
			t.Errorf("value %d has %d bytes and room for %d", i, len(v.Data), cap(v.Data))
		}
	}
}

// What stands in the record as it is needed is not copied.
func TestValuesAliasTheRecord(t *testing.T) {
	r := record(`{"t":"text","n":1,"b":true,"o":{"a":[1]},"esc":"\u0061"}`)
	got := values(t, r, "t", "n", "b", "o", "o.a", "kafka:value", "kafka:key", "header:source", "esc")
	backing := [][]byte{r.Value, r.Value, r.Value, r.Value, r.Value, r.Value, r.Key, r.Headers[0].Value}
	for i, b := range backing {
		if !within(b, got[i].Data) {
			t.Errorf("value %d (%s) is a copy", i, got[i].Data)
		}
	}
	if within(r.Value, got[8].Data) {
		t.Errorf("a string with an escape lies in the record")
	}
}

// within tells whether part is a piece of whole's memory.
func within(whole, part []byte) bool {
	from, to := uintptr(unsafe.Pointer(unsafe.SliceData(whole))), uintptr(unsafe.Pointer(unsafe.SliceData(part)))
	return len(part) > 0 && len(whole) > 0 && to >= from && to+uintptr(len(part)) <= from+uintptr(len(whole))
}

// The record belongs to the fetched batch, which others read at the same time.
func TestTheRecordIsNotWrittenTo(t *testing.T) {
	for _, doc := range []string{order, wide, `{"a":"\u0061","\u0062":"x","a":1}`, `{"a":{"b":[1,`, `[1,"x"]`} {
		r := record(doc)
		d := plan(t, decode.Limits{}, "a", "b", "order.id", "customer").NewDecoder()
		_ = d.Decode(r, make([]stream.Value, 4))
		_ = d.Decode(r, make([]stream.Value, 4))
		if string(r.Value) != doc {
			t.Errorf("%q became %q", doc, r.Value)
		}
	}
}

// An exceptional batch must not pin its memory for ever: the buffer goes once the
// batches are small again.
func TestResetGivesBackAnExceptionalBuffer(t *testing.T) {
	d := plan(t, decode.Limits{}, "s").NewDecoder()
	dst := make([]stream.Value, 1)
	big, small := record(`{"s":"\n`+strings.Repeat("x", 1<<20)+`"}`), record(`{"s":"\n"}`)
	batch := func(r *stream.Record) *byte {
		d.Reset()
		if err := d.Decode(r, dst); err != nil {
			t.Fatal(err)
		}
		return unsafe.SliceData(dst[0].Data)
	}
	first := batch(big)
	if batch(big) != first {
		t.Error("a second big batch does not reuse the buffer")
	}
	if batch(small) != first {
		t.Error("the buffer went before a small batch was seen")
	}
	if batch(small) == first {
		t.Error("the buffer stays after a small batch")
	}
}

// The budget is no allocation a record.
func TestNoAllocation(t *testing.T) {
	for _, c := range benches {
		t.Run(c.name, func(t *testing.T) {
			d := plan(t, decode.Limits{}, c.sources...).NewDecoder()
			r, dst := record(c.doc), make([]stream.Value, len(c.sources))
			batch := func() {
				d.Reset()
				for range 100 {
					if err := d.Decode(r, dst); err != nil {
						t.Fatal(err)
					}
				}
			}
			batch() // grows the buffers
			if n := testing.AllocsPerRun(20, batch); n != 0 {
				t.Errorf("%v allocations in 100 records", n)
			}
		})
	}
}
