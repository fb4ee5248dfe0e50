package decode

import (
	"bytes"
	"errors"

	"github.com/go-json-experiment/json/jsontext"

	"effectonce/pkg/stream"
)

// Limits the token reader does not know are reported as errors of its kind, so
// that one place turns all of them into faults.
var (
	errTooDeep        = errors.New("nested too deep")
	errTooManyMembers = errors.New("too many members")
)

// document reads one JSON document into dst.
func (d *Decoder) document(doc []byte, dst []stream.Value) *stream.Fault {
	switch {
	case doc == nil:
		return fault(tombstone, "the record has no document, and a source is in it")
	case len(doc) > d.plan.limits.Bytes:
		return fault(tooLarge, "the document has %d bytes, the limit is %d", len(doc), d.plan.limits.Bytes)
	}
	d.doc, d.values, d.counted = doc, dst, false
	d.input = *bytes.NewBuffer(doc)
	d.json.Reset(&d.input)

	kind := d.json.PeekKind()
	root := d.plan.root
	if kind != jsontext.KindBeginObject {
		root = nil // wrong in any case; walk on to learn whether it is JSON at all
	}
	if err := d.value(root, 1); err != nil {
		return d.refuse(err)
	}
	if rest := bytes.TrimLeft(doc[d.json.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fault(notJSON, "there is more after the end of the document, at byte %d", len(doc)-len(rest))
	}
	if root == nil {
		return fault(notObject, "the document is %s, not an object", kindName(kind))
	}
	return nil
}

// value reads the next value, at the given depth if it is an object or array, and
// hands it to the takers of n.
func (d *Decoder) value(n *node, depth int) error {
	kind := d.json.PeekKind()
	nested := kind == jsontext.KindBeginObject || kind == jsontext.KindBeginArray
	if nested && (n.inner() || !d.harmless()) {
		return d.walk(kind, n, depth)
	}
	raw, err := d.json.ReadValue()
	if err == nil && n.taken() {
		d.give(n, d.read(kind, len(raw)))
	}
	return err
}

// walk reads an object or array token by token.
func (d *Decoder) walk(kind jsontext.Kind, n *node, depth int) error {
	if depth > d.plan.limits.Depth {
		return errTooDeep
	}
	if _, err := d.json.ReadToken(); err != nil {
		return err
	}
	start := d.json.InputOffset() - 1
	step := d.array
	if kind == jsontext.KindBeginObject {
		step = d.object
	}
	if err := step(n, depth); err != nil {
		return err
	}
	if n.taken() {
		d.give(n, d.read(kind, int(d.json.InputOffset()-start)))
	}
	return nil
}

// harmless tells whether the document cannot go beyond the limits of depth and
// members, whatever it says: a level takes a bracket, a member at least the five
// bytes of "":0, in it. Then an object that no path leads into is read in one call,
// which is twice as fast; else it is walked, for the token reader has no limits of
// its own below maxDepth.
func (d *Decoder) harmless() bool {
	if !d.counted {
		d.counted = true
		d.bounded = len(d.doc)/5 <= d.plan.limits.Members &&
			bytes.Count(d.doc, []byte("{"))+bytes.Count(d.doc, []byte("[")) <= d.plan.limits.Depth
	}
	return d.bounded
}

// object reads up to and with the closing brace.
func (d *Decoder) object(n *node, depth int) error {
	for members := 0; d.json.PeekKind() == jsontext.KindString; members++ {
		if members == d.plan.limits.Members {
			return errTooManyMembers
		}
		name, err := d.json.ReadValue() // refuses a repeated name
		if err != nil {
			return err
		}
		if err := d.value(d.member(n, name), depth+1); err != nil {
			return err
		}
	}
	_, err := d.json.ReadToken() // refuses everything but the brace
	return err
}

// array reads up to and with the closing bracket. No path leads into an array.
func (d *Decoder) array(_ *node, depth int) error {
	for {
		switch d.json.PeekKind() {
		case jsontext.KindEndArray, jsontext.KindInvalid:
			_, err := d.json.ReadToken()
			return err
		}
		if err := d.value(nil, depth+1); err != nil {
			return err
		}
	}
}

// member finds the node for a quoted member name.
func (d *Decoder) member(n *node, quoted []byte) *node {
	if !n.inner() {
		return nil
	}
	if bytes.IndexByte(quoted, '\\') < 0 {
		return n.child(quoted[1 : len(quoted)-1])
	}
	d.name = unquote(d.name[:0], quoted)
	return n.child(d.name)
}

// read is the value of the given length that was just read. Its bytes are taken
// from the document, not from the token reader, whose slices live until its next
// call only.
func (d *Decoder) read(kind jsontext.Kind, length int) stream.Value {
	end := int(d.json.InputOffset())
	raw := d.doc[end-length : end : end]
	switch kind {
	case jsontext.KindString:
		if bytes.IndexByte(raw, '\\') >= 0 {
			return d.written(stream.Text, unquote(d.arena, raw))
		}
		return stream.Value{Kind: stream.Text, Data: raw[1 : length-1 : length-1]}
	case jsontext.KindNumber:
		return stream.Value{Kind: stream.Number, Data: raw}
	case jsontext.KindNull:
		return stream.Value{Kind: stream.Null}
	case jsontext.KindTrue, jsontext.KindFalse:
		return stream.Value{Kind: stream.Bool, Data: raw}
	default: // an object or array
		return stream.Value{Kind: stream.JSON, Data: raw}
	}
}

func (d *Decoder) give(n *node, v stream.Value) {
	for _, i := range n.takers {
		d.values[i] = v
	}
}

// unquote appends what a string means. The token reader has checked it before.
func unquote(dst, quoted []byte) []byte {
	dst, err := jsontext.AppendUnquote(dst, quoted)
	if err != nil {
		panic("decode: the token reader passed a string that it cannot unquote: " + err.Error())
	}
	return dst
}
