package sink_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/pkg/stream"
)

// typeCase is a value, and what the server prints for it or why it is refused.
type typeCase struct {
	value  stream.Value
	stored string
	reason string
}

const sqlNull = "<null>"

var typeCases = map[string][]typeCase{
	"text": {
		{value: text(""), stored: ""},
		{value: text("žluťoučký 🐎"), stored: "žluťoučký 🐎"},
		{value: text(`quote ' back \ slash`), stored: `quote ' back \ slash`},
		{value: number("1e400"), stored: "1e400"},
		{value: boolean("true"), stored: "true"},
		{value: doc(`{"a": 1}`), stored: `{"a": 1}`},
		{value: raw("h\xc3\xa9"), stored: "hé"},
		{value: stamp("2024-01-01T00:00:00.000000001Z"), stored: "2024-01-01T00:00:00.000000001Z"},
		{value: missing, stored: sqlNull},
		{value: null, stored: sqlNull},
		{value: text("a\x00b"), reason: "nul_in_text"},
		{value: raw("\x00"), reason: "nul_in_text"},
		{value: raw("\xff"), reason: "bad_utf8"},
		{value: raw("\xed\xa0\x80"), reason: "bad_utf8"},
	},
	"varchar(3)": {
		{value: text("äöü"), stored: "äöü"},
		{value: text("abc   "), stored: "abc"}, // SQL: only blanks may be cut
	},
	"char(4)": {
		{value: text("ab"), stored: "ab"}, // printed through text, which drops the blanks
		{value: text("abcd  "), stored: "abcd"},
	},
	"boolean": {
		{value: boolean("true"), stored: "true"},
		{value: boolean("false"), stored: "false"},
		{value: raw("true"), stored: "true"},
		{value: raw("t"), reason: "wrong_type"},
		{value: text("true"), reason: "wrong_type"},
		{value: number("1"), reason: "wrong_type"},
	},
	"int2": {
		{value: number("-32768"), stored: "-32768"},
		{value: number("32767"), stored: "32767"},
		{value: number("32768"), reason: "out_of_range"},
		{value: number("-32769"), reason: "out_of_range"},
	},
	"int4": {
		{value: number("-2147483648"), stored: "-2147483648"},
		{value: number("2147483647"), stored: "2147483647"},
		{value: number("2147483648"), reason: "out_of_range"},
		{value: number("1e2"), stored: "100"},
		{value: number("1.0"), stored: "1"},
		{value: number("-0"), stored: "0"},
		{value: number("0e999999999999999999999"), stored: "0"},
		{value: number("1200e-2"), stored: "12"},
		{value: number("1.5"), reason: "not_integer"},
		{value: number("1e-1"), reason: "not_integer"},
		{value: number("1e-999999999999999999999"), reason: "not_integer"},
		{value: number("1e999999999999999999999"), reason: "out_of_range"},
		{value: raw("42"), stored: "42"},
		{value: raw("007"), reason: "not_a_number"},
		{value: raw("+1"), reason: "not_a_number"},
		{value: raw(" 1"), reason: "not_a_number"},
		{value: raw(""), reason: "not_a_number"},
		{value: raw("1_000"), reason: "not_a_number"},
		{value: text("1"), reason: "wrong_type"},
		{value: boolean("true"), reason: "wrong_type"},
	},
	"int8": {
		{value: number("9007199254740992"), stored: "9007199254740992"},
		{value: number("9007199254740993"), stored: "9007199254740993"}, // beyond a float64
		{value: number("9223372036854775807"), stored: "9223372036854775807"},
		{value: number("-9223372036854775808"), stored: "-9223372036854775808"},
		{value: number("9223372036854775808"), reason: "out_of_range"},
		{value: number("-9223372036854775809"), reason: "out_of_range"},
		{value: number("18446744073709551615"), reason: "out_of_range"},
		{value: number("327267367867168100000"), reason: "out_of_range"},
		{value: number("9.223372036854775807e18"), stored: "9223372036854775807"},
		{value: number("1e18"), stored: "1000000000000000000"},
		{value: number("1e400"), reason: "out_of_range"},
	},
	"numeric": {
		{value: number("0.1"), stored: "0.1"},
		{value: number("1.50"), stored: "1.50"},
		{value: number("-0"), stored: "0"},
		{value: number("-0.00"), stored: "0.00"},
		{value: number("1e3"), stored: "1000"},
		{value: number("1.5e-5"), stored: "0.000015"},
		{value: number("327267367867168100000"), stored: "327267367867168100000"},
		{value: number("12345678901234567890.12345678901234567890"), stored: "12345678901234567890.12345678901234567890"},
		{value: number("1e400"), stored: "1" + strings.Repeat("0", 400)},
		{value: number("1e-16383"), stored: "0." + strings.Repeat("0", 16382) + "1"},
		{value: number("1e-16384"), reason: "out_of_range"},
		{value: number("1e131071"), stored: "1" + strings.Repeat("0", 131071)},
		{value: number("1e131072"), reason: "out_of_range"},
		{value: number("-9e999999999999"), reason: "out_of_range"},
		{value: raw("12.5"), stored: "12.5"},
		{value: raw("NaN"), reason: "not_a_number"},
		{value: raw("0x10"), reason: "not_a_number"},
		{value: text("12.5"), reason: "wrong_type"},
	},
	"numeric(6,2)": {
		{value: number("1.5"), stored: "1.50"},
		{value: number("1.500000"), stored: "1.50"},
		{value: number("-9999.99"), stored: "-9999.99"},
		{value: number("1.005"), reason: "would_round"},
		{value: number("1e-3"), reason: "would_round"},
		{value: number("0.00000"), stored: "0.00"},
	},
	"numeric(3)": {
		{value: number("999"), stored: "999"},
		{value: number("99.0"), stored: "99"},
		{value: number("0.5"), reason: "would_round"},
	},
	"float8": {
		{value: number("0.1"), stored: "0.1"},
		{value: number("1.7976931348623157e308"), stored: "1.7976931348623157e+308"},
		{value: number("1e309"), reason: "out_of_range"},
		{value: number("5e-324"), stored: "5e-324"},
		{value: number("1e-400"), reason: "out_of_range"},
		{value: number("0e-400"), stored: "0"},
		{value: number("-0.0"), stored: "-0"},
		{value: raw("1.25"), stored: "1.25"},
		{value: raw("Infinity"), reason: "not_a_number"},
		{value: raw("0x1p-2"), reason: "not_a_number"},
	},
	"float4": {
		{value: number("0.1"), stored: "0.1"},
		{value: number("3.4028235e38"), stored: "3.4028235e+38"},
		{value: number("3.5e38"), reason: "out_of_range"},
		{value: number("1e-50"), reason: "out_of_range"},
	},
	"uuid": {
		{value: text("00112233-4455-6677-8899-aAbBcCdDeEfF"), stored: "00112233-4455-6677-8899-aabbccddeeff"},
		{value: raw("00112233445566778899aabbccddeeff"), stored: "00112233-4455-6677-8899-aabbccddeeff"},
		{value: text("00112233-4455-6677-8899-aabbccddeef"), reason: "not_uuid"},
		{value: text("00112233-4455-6677-8899aabbccddeeff-"), reason: "not_uuid"},
		{value: text("0011223g-4455-6677-8899-aabbccddeeff"), reason: "not_uuid"},
		{value: text(""), reason: "not_uuid"},
		{value: number("1"), reason: "wrong_type"},
	},
	"date": {
		{value: text("2024-02-29"), stored: "2024-02-29"},
		{value: text("0001-01-01"), stored: "0001-01-01"},
		{value: text("9999-12-31"), stored: "9999-12-31"},
		{value: text("1999-12-31"), stored: "1999-12-31"},
		{value: text("2023-02-29"), reason: "not_date"},
		{value: text("1900-02-29"), reason: "not_date"},
		{value: text("2024-13-01"), reason: "not_date"},
		{value: text("2024-04-31"), reason: "not_date"},
		{value: text("2024-00-01"), reason: "not_date"},
		{value: text("0000-01-01"), reason: "not_date"},
		{value: text("2024-1-1"), reason: "not_date"},
		{value: text("294276-01-01"), reason: "not_date"},
		{value: text("2024-01-01T00:00:00Z"), reason: "not_date"},
		{value: text("infinity"), reason: "not_date"},
		{value: text("2024-01-0\xff"), reason: "not_date"},
		{value: number("20240101"), reason: "wrong_type"},
	},
	"timestamptz": {
		{value: text("2024-03-31T02:30:00+01:00"), stored: "2024-03-31 01:30:00+00"},
		{value: text("2024-03-31T02:30:00Z"), stored: "2024-03-31 02:30:00+00"},
		{value: text("2024-03-31t02:30:00.123456z"), stored: "2024-03-31 02:30:00.123456+00"},
		{value: text("2024-03-31 02:30:00-23:59"), stored: "2024-04-01 02:29:00+00"},
		{value: text("0001-01-01T00:00:00Z"), stored: "0001-01-01 00:00:00+00"},
		{value: text("0001-01-01T00:00:00+01:00"), stored: "0001-12-31 23:00:00+00 BC"},
		{value: text("9999-12-31T23:59:59.999999Z"), stored: "9999-12-31 23:59:59.999999+00"},
		{value: text("2024-12-31T23:59:59.9999999Z"), stored: "2024-12-31 23:59:59.999999+00"}, // cut, not carried
		{value: text("2016-12-31T23:59:60Z"), stored: "2017-01-01 00:00:00+00"},                // a leap second
		{value: text("1970-01-01T00:00:00.5Z"), stored: "1970-01-01 00:00:00.5+00"},
		{value: stamp("2024-06-30T12:00:00.123Z"), stored: "2024-06-30 12:00:00.123+00"},
		{value: text("2024-03-31T02:30:00"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:30:00+0100"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:30:00+24:00"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:30:00.Z"), reason: "not_timestamp"},
		{value: text("2024-03-31T24:00:00Z"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:60:00Z"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:30:61Z"), reason: "not_timestamp"},
		{value: text("2024-02-30T02:30:00Z"), reason: "not_timestamp"},
		{value: text("2024-03-31T02:30Z"), reason: "not_timestamp"},
		{value: text("infinity"), reason: "not_timestamp"},
		{value: text("294276-01-01T00:00:00Z"), reason: "not_timestamp"},
		{value: number("1711852200000"), reason: "wrong_type"},
	},
	"json": {
		{value: doc(`{"b": 1, "a": [true, null]}`), stored: `{"b": 1, "a": [true, null]}`},
		{value: doc(`{"a": "\u0000"}`), stored: `{"a": "\u0000"}`},
		{value: doc(`["\ud800"]`), stored: `["\ud800"]`},
		{value: text("a\"\\\n\x00\x1f/é"), stored: `"a\"\\\u000a\u0000\u001f/é"`},
		{value: number("1e400"), stored: "1e400"},
		{value: boolean("false"), stored: "false"},
		{value: null, stored: "null"},
		{value: missing, stored: sqlNull},
		{value: raw(`{"a":1}`), stored: `{"a":1}`},
		{value: raw(`{"a":1`), reason: "not_json"},
		{value: raw("\"\xff\""), reason: "bad_utf8"},
		{value: doc(strings.Repeat("[", 1000) + strings.Repeat("]", 1000)), stored: strings.Repeat("[", 1000) + strings.Repeat("]", 1000)},
		{value: doc(strings.Repeat("[", 1001) + strings.Repeat("]", 1001)), reason: "too_deep"},
	},
	"jsonb": {
		{value: doc(`{"b":1,"a":[true,null]}`), stored: `{"a": [true, null], "b": 1}`},
		{value: doc(`{"a":"\ud83d\ude00"}`), stored: `{"a": "😀"}`},
		{value: doc(`{"a":"\\u0000"}`), stored: `{"a": "\\u0000"}`},
		{value: doc(`{"a":"\"\\","b":"\u0001"}`), stored: `{"a": "\"\\", "b": "\u0001"}`},
		{value: text("a\"\\\n\x01é"), stored: `"a\"\\\n\u0001é"`},
		{value: number("1.50"), stored: "1.50"},
		{value: null, stored: "null"},
		{value: missing, stored: sqlNull},
		{value: doc(`{"a":"\u0000"}`), reason: "nul_in_text"},
		{value: doc(`{"\u0000":1}`), reason: "nul_in_text"},
		{value: text("\x00"), reason: "nul_in_text"},
		{value: doc(`["\ud83d"]`), reason: "bad_escape"},
		{value: doc(`["\ud83d\ud83d"]`), reason: "bad_escape"},
		{value: doc(`["\ude00"]`), reason: "bad_escape"},
		{value: doc(`["\ud83dx"]`), reason: "bad_escape"},
		{value: doc(`["\ud83d\\ude00"]`), reason: "bad_escape"},
	},
	"bytea": {
		{value: raw("\x00\xff"), stored: `\x00ff`},
		{value: raw(""), stored: `\x`},
		{value: text(""), stored: `\x`},
		{value: text("AP8="), stored: `\x00ff`},
		{value: text(`\x00Ff`), stored: `\x00ff`},
		{value: doc(`{"a":1}`), stored: `\x7b2261223a317d`},
		{value: text("AP8"), reason: "not_base64"},
		{value: text("hello world"), reason: "not_base64"},
		{value: text(`\x0`), reason: "not_hex"},
		{value: number("1"), reason: "wrong_type"},
	},
}

// TestTypes writes every case through COPY and through arrays, and compares both
// with what the server prints.
func TestTypes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	n := 0
	for typ, cases := range typeCases {
		for _, domain := range []bool{false, true} {
			n++
			name := "t" + strconv.Itoa(n)
			declared := typ
			if domain { // over another domain, both in a schema no search path finds
				declared = db.User + ".d" + strconv.Itoa(n)
				db.Exec(t, "CREATE DOMAIN "+declared+"x AS "+typ)
				db.Exec(t, "CREATE DOMAIN "+declared+" AS "+declared+"x CHECK (true)")
			}
			for _, via := range []string{"copy", "array"} {
				target := name + via
				db.Table(t, target, "id int, v "+declared)
				if via == "array" {
					secure(t, db, target)
				}
				if diff := writeCases(t, db, conn, target, cases); diff != "" {
					t.Errorf("%s by %s (-want +got):\n%s", declared, via, diff)
				}
			}
		}
	}
}

// writeCases writes the cases into a table and returns how the outcome differs.
func writeCases(t *testing.T, db *pgtest.DB, conn *pgx.Conn, target string, cases []typeCase) string {
	t.Helper()
	table := open(t, conn, mapped(db, target, "id", "v"))
	rows := make([][]stream.Value, len(cases))
	want := make([]string, len(cases))
	for i, c := range cases {
		rows[i] = []stream.Value{number(strconv.Itoa(i)), c.value}
		if want[i] = c.stored; c.reason != "" {
			want[i] = "refused: " + c.reason
		}
	}
	got := make([]string, len(cases))
	for _, f := range write(t, conn, table, batchOf(rows...)) {
		got[f.Index] = "refused: " + f.Reason
	}
	for _, line := range texts(t, db, "SELECT id || ' ' || coalesce(v::text, '<null>') FROM "+db.User+"."+target) {
		id, stored, _ := strings.Cut(line, " ")
		got[atoi(t, id)] += stored
	}
	return cmp.Diff(want, got)
}
