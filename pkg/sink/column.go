package sink

import (
	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/pkg/stream"
)

// column is a mapped column as the catalog describes it.
type column struct {
	Column
	kind     kind
	element  uint32 // OID of the base type
	array    uint32 // OID of its array
	scale    int    // numeric: digits behind the point, or unscaled
	notNull  bool
	conflict bool // part of the upsert's key
}

// unscaled is the scale of a numeric without one.
const unscaled = 1 << 20

// kind is how a type is encoded.
type kind uint8

const (
	kindNone kind = iota
	kindText
	kindBool
	kindInt2
	kindInt4
	kindInt8
	kindNumeric
	kindFloat4
	kindFloat8
	kindUUID
	kindDate
	kindTimestamptz
	kindJSON
	kindJSONB
	kindBytea
)

// supported is the list for messages.
const supported = "text, varchar, char, boolean, smallint, integer, bigint, numeric, real, double precision, uuid, date, " +
	"timestamp with time zone, json, jsonb, bytea, and domains over them"

// kindOf returns how a base type is encoded and the OID of its array, or kindNone.
func kindOf(oid uint32) (kind, uint32) {
	switch oid {
	case pgtype.TextOID:
		return kindText, pgtype.TextArrayOID
	case pgtype.VarcharOID:
		return kindText, pgtype.VarcharArrayOID
	case pgtype.BPCharOID:
		return kindText, pgtype.BPCharArrayOID
	case pgtype.BoolOID:
		return kindBool, pgtype.BoolArrayOID
	case pgtype.Int2OID:
		return kindInt2, pgtype.Int2ArrayOID
	case pgtype.Int4OID:
		return kindInt4, pgtype.Int4ArrayOID
	case pgtype.Int8OID:
		return kindInt8, pgtype.Int8ArrayOID
	case pgtype.NumericOID:
		return kindNumeric, pgtype.NumericArrayOID
	case pgtype.Float4OID:
		return kindFloat4, pgtype.Float4ArrayOID
	case pgtype.Float8OID:
		return kindFloat8, pgtype.Float8ArrayOID
	case pgtype.UUIDOID:
		return kindUUID, pgtype.UUIDArrayOID
	case pgtype.DateOID:
		return kindDate, pgtype.DateArrayOID
	case pgtype.TimestamptzOID:
		return kindTimestamptz, pgtype.TimestamptzArrayOID
	case pgtype.JSONOID:
		return kindJSON, pgtype.JSONArrayOID
	case pgtype.JSONBOID:
		return kindJSONB, pgtype.JSONBArrayOID
	case pgtype.ByteaOID:
		return kindBytea, pgtype.ByteaArrayOID
	}
	return kindNone, 0
}

// numericScale reads the scale out of numeric's type modifier: eleven bits with
// a sign since PostgreSQL 15, and never above 1,000 before.
func numericScale(typmod int32) int {
	const header, bits, sign = 4, 0x7ff, 0x400
	if typmod < header {
		return unscaled
	}
	return (int(typmod-header)&bits ^ sign) - sign
}

// The reasons of faults of encoding: fixed words, see the package comment.
const (
	reasonType      = "wrong_type"
	reasonNull      = "null_in_not_null"
	reasonNullKey   = "null_in_key"
	reasonNul       = "nul_in_text"
	reasonUTF8      = "bad_utf8"
	reasonNumber    = "not_a_number"
	reasonInteger   = "not_integer"
	reasonRange     = "out_of_range"
	reasonRound     = "would_round"
	reasonUUID      = "not_uuid"
	reasonDate      = "not_date"
	reasonTimestamp = "not_timestamp"
	reasonJSON      = "not_json"
	reasonEscape    = "bad_escape"
	reasonDepth     = "too_deep"
	reasonBase64    = "not_base64"
	reasonHex       = "not_hex"
)

// sentences say the reasons to people.
func sentence(reason string, k stream.Kind) string {
	switch reason {
	case reasonType:
		return "does not take a value of kind " + k.String()
	case reasonNull:
		return "is NOT NULL and the value is " + k.String()
	case reasonNullKey:
		return "is a conflict column and the value is " + k.String()
	case reasonNul:
		return "cannot hold U+0000"
	case reasonUTF8:
		return "takes UTF-8, the bytes are not"
	case reasonNumber:
		return "takes a number, digits with an optional sign, point and exponent"
	case reasonInteger:
		return "takes whole numbers, the value has a fraction"
	case reasonRange:
		return "cannot hold a number of this size"
	case reasonRound:
		return "has fewer digits behind the point than the value"
	case reasonUUID:
		return "takes 32 hex digits, with hyphens or without"
	case reasonDate:
		return "takes YYYY-MM-DD, a day that exists"
	case reasonTimestamp:
		return "takes an RFC 3339 time with an offset"
	case reasonJSON:
		return "takes JSON, the bytes are not"
	case reasonEscape:
		return "cannot hold a lone surrogate"
	case reasonDepth:
		return "takes at most 1000 levels of nesting"
	case reasonBase64:
		return `takes base64 with padding, or hex behind \x`
	case reasonHex:
		return `takes pairs of hex digits behind \x`
	}
	return reason
}
