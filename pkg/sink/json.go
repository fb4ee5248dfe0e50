package sink

import (
	"encoding/json"
	"unicode/utf8"

	"effectonce/pkg/stream"
)

// deepest is how far JSON may nest: the server's own limit depends on its stack.
const deepest = 1000

// appendJSON appends the text of a JSON value. A document that was decoded is
// known to be JSON; bytes are not.
func appendJSON(dst []byte, v stream.Value, jsonb bool) ([]byte, string) {
	switch v.Kind {
	case stream.Text, stream.Time:
		return appendJSONText(dst, v.Data, jsonb)
	case stream.Number, stream.Bool, stream.Null:
		return append(dst, v.Data...), ""
	case stream.Bytes:
		if !utf8.Valid(v.Data) {
			return dst, reasonUTF8
		}
		if !json.Valid(v.Data) {
			return dst, reasonJSON
		}
	case stream.JSON:
	case stream.Missing:
		return dst, reasonType
	}
	if reason := checkJSON(v.Data, jsonb); reason != "" {
		return dst, reason
	}
	return append(dst, v.Data...), ""
}

const hexDigits = "0123456789abcdef"

// appendJSONText appends text as a JSON string.
func appendJSONText(dst, text []byte, jsonb bool) ([]byte, string) {
	dst = append(dst, '"')
	for _, c := range text {
		switch {
		case c == 0 && jsonb:
			return dst, reasonNul
		case c < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		case c == '"', c == '\\':
			dst = append(dst, '\\', c)
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"'), ""
}

// checkJSON looks in valid JSON for what Postgres refuses: deep nesting, and in
// jsonb the escapes it cannot store.
func checkJSON(p []byte, jsonb bool) string {
	depth := 0
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '{', '[':
			if depth++; depth > deepest {
				return reasonDepth
			}
		case '}', ']':
			depth--
		case '"':
			n, reason := checkString(p[i+1:])
			if reason != "" && jsonb {
				return reason
			}
			i += 1 + n
		}
	}
	return ""
}

// checkString returns the length of a JSON string up to its closing quote and
// what is wrong with its escapes.
func checkString(p []byte) (int, string) {
	reason := ""
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '"':
			return i, reason
		case '\\':
			i++
			if i >= len(p) || p[i] != 'u' {
				continue
			}
			unit := hex4(p, i+1)
			switch i += 4; {
			case unit == 0:
				reason = reasonNul
			case unit >= 0xDC00 && unit <= 0xDFFF: // a low surrogate alone
				reason = reasonEscape
			case unit >= 0xD800 && unit <= 0xDBFF:
				low := -1
				if i+2 < len(p) && p[i+1] == '\\' && p[i+2] == 'u' {
					low = hex4(p, i+3)
				}
				if low < 0xDC00 || low > 0xDFFF {
					reason = reasonEscape
					continue
				}
				i += 6
			}
		}
	}
	return len(p), reason
}

// hex4 reads four hex digits, -1 if they are not there.
func hex4(p []byte, at int) int {
	if at+4 > len(p) {
		return -1
	}
	n := 0
	for _, c := range p[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			n = n<<4 | int(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			n = n<<4 | int(c|0x20-'a'+10)
		default:
			return -1
		}
	}
	return n
}
