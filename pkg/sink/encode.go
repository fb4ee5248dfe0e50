package sink

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"unicode/utf8"

	"effectonce/pkg/stream"
)

// appendRow appends one row of the binary COPY format: the count of columns, and
// each as its length and bytes. On a fault it returns the column and the reason.
func (s *shape) appendRow(dst []byte, row []stream.Value) ([]byte, *column, string) {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(s.columns)))
	for i := range s.columns {
		c := &s.columns[i]
		var reason string
		if dst, reason = c.append(dst, row[c.Source]); reason != "" {
			return dst, c, reason
		}
	}
	return dst, nil, ""
}

// null is the length that stands for NULL.
var null = [...]byte{0xff, 0xff, 0xff, 0xff}

// append appends the length and bytes of one value.
func (c *column) append(dst []byte, v stream.Value) ([]byte, string) {
	if v.Kind == stream.Missing || v.Kind == stream.Null {
		switch {
		case v.Kind == stream.Null && (c.kind == kindJSON || c.kind == kindJSONB):
			v.Data = []byte("null")
		case c.conflict:
			return dst, reasonNullKey
		case c.notNull:
			return dst, reasonNull
		default:
			return append(dst, null[:]...), ""
		}
	}
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	dst, reason := c.appendValue(dst, v)
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
	return dst, reason
}

func (c *column) appendValue(dst []byte, v stream.Value) ([]byte, string) {
	switch c.kind {
	case kindText:
		return appendText(dst, v)
	case kindBool:
		return appendBool(dst, v)
	case kindInt2, kindInt4, kindInt8:
		return c.appendInt(dst, v)
	case kindNumeric:
		if !numeral(v) {
			return dst, reasonType
		}
		return appendNumeric(dst, v.Data, c.scale)
	case kindFloat4, kindFloat8:
		if !numeral(v) {
			return dst, reasonType
		}
		return appendFloat(dst, v.Data, c.kind == kindFloat4)
	case kindUUID:
		return appendUUID(dst, v)
	case kindDate:
		return appendDate(dst, v)
	case kindTimestamptz:
		return appendTimestamptz(dst, v)
	case kindJSON:
		return appendJSON(dst, v, false)
	case kindJSONB:
		return appendJSON(append(dst, 1), v, true) // the version of jsonb's wire format
	case kindBytea:
		return appendBytea(dst, v)
	case kindNone:
	}
	return dst, reasonType
}

// numeral reports whether v may hold a number: JSON text never does.
func numeral(v stream.Value) bool { return v.Kind == stream.Number || v.Kind == stream.Bytes }

// textual reports whether v is text of whatever origin.
func textual(v stream.Value) bool { return v.Kind == stream.Text || v.Kind == stream.Bytes }

func appendText(dst []byte, v stream.Value) ([]byte, string) {
	if v.Kind == stream.Bytes && !utf8.Valid(v.Data) {
		return dst, reasonUTF8
	}
	if bytes.IndexByte(v.Data, 0) >= 0 {
		return dst, reasonNul
	}
	return append(dst, v.Data...), ""
}

func appendBool(dst []byte, v stream.Value) ([]byte, string) {
	if v.Kind != stream.Bool && v.Kind != stream.Bytes {
		return dst, reasonType
	}
	switch string(v.Data) {
	case "true":
		return append(dst, 1), ""
	case "false":
		return append(dst, 0), ""
	}
	return dst, reasonType
}

func (c *column) appendInt(dst []byte, v stream.Value) ([]byte, string) {
	if !numeral(v) {
		return dst, reasonType
	}
	n, reason := parseInt(v.Data)
	if reason != "" {
		return dst, reason
	}
	switch c.kind {
	case kindInt2:
		if n != int64(int16(n)) {
			return dst, reasonRange
		}
		return binary.BigEndian.AppendUint16(dst, uint16(n)), ""
	case kindInt4:
		if n != int64(int32(n)) {
			return dst, reasonRange
		}
		return binary.BigEndian.AppendUint32(dst, uint32(n)), ""
	default:
		return binary.BigEndian.AppendUint64(dst, uint64(n)), ""
	}
}

func appendUUID(dst []byte, v stream.Value) ([]byte, string) {
	const digits, canonical = 32, 36
	if !textual(v) {
		return dst, reasonType
	}
	var plain [digits]byte
	switch p := v.Data; {
	case len(p) == digits:
		copy(plain[:], p)
	case len(p) == canonical && p[8] == '-' && p[13] == '-' && p[18] == '-' && p[23] == '-':
		n := copy(plain[:], p[:8])
		n += copy(plain[n:], p[9:13])
		n += copy(plain[n:], p[14:18])
		n += copy(plain[n:], p[19:23])
		copy(plain[n:], p[24:])
	default:
		return dst, reasonUUID
	}
	dst, err := hex.AppendDecode(dst, plain[:])
	if err != nil {
		return dst, reasonUUID
	}
	return dst, ""
}

func appendBytea(dst []byte, v stream.Value) ([]byte, string) {
	switch v.Kind {
	case stream.Bytes, stream.JSON:
		return append(dst, v.Data...), ""
	case stream.Text:
	default:
		return dst, reasonType
	}
	if digits, ok := bytes.CutPrefix(v.Data, []byte(`\x`)); ok {
		out, err := hex.AppendDecode(dst, digits)
		if err != nil {
			return dst, reasonHex
		}
		return out, ""
	}
	out, err := base64.StdEncoding.AppendDecode(dst, v.Data)
	if err != nil {
		return dst, reasonBase64
	}
	return out, ""
}
