package pgtx

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// Step names where in a transaction something happened. Verdicts are given by
// step, error type and SQLSTATE.
type Step string

// The steps of a transaction, in order.
const (
	StepBegin  Step = "begin"
	StepFence  Step = "fence"
	StepEffect Step = "effect"
	StepLog    Step = "log"
	StepWrite  Step = "write"
	StepCommit Step = "commit"
)

// Statement is one SQL statement with bind parameters. It is parsed unnamed and
// run in the extended protocol: nothing relies on a session, and no value is
// ever part of the text.
type Statement struct {
	Step   Step
	SQL    string
	Params []Param
	Row    func(Row) error // called for each row of the answer; may be nil
}

// Param is one bind parameter of a known type.
type Param struct {
	OID   uint32
	Value any
}

// Row is one row of an answer. Scan follows pgx's rules.
type Row interface{ Scan(dest ...any) error }

// The constructors of Param name the Postgres type they bind.

// Int8 binds a bigint.
func Int8(v int64) Param { return Param{pgtype.Int8OID, v} }

// Int8s binds a bigint[].
func Int8s(v []int64) Param { return Param{pgtype.Int8ArrayOID, v} }

// Int4 binds an integer.
func Int4(v int32) Param { return Param{pgtype.Int4OID, v} }

// Int4s binds an integer[].
func Int4s(v []int32) Param { return Param{pgtype.Int4ArrayOID, v} }

// Text binds a text.
func Text(v string) Param { return Param{pgtype.TextOID, v} }

// Texts binds a text[]; a nil pointer is null.
func Texts(v []string) Param { return Param{pgtype.TextArrayOID, v} }

// Bytea binds a bytea; nil is null.
func Bytea(v []byte) Param { return Param{pgtype.ByteaOID, raw(v)} }

// Binary binds a value that is already in the type's binary wire format.
func Binary(oid uint32, v []byte) Param { return Param{oid, raw(v)} }

// raw is a value in wire format.
type raw []byte

// Byteas binds a bytea[]; a nil element is null.
func Byteas(v [][]byte) Param { return Param{pgtype.ByteaArrayOID, v} }

// UUID binds a uuid.
func UUID[T ~[16]byte](v T) Param { return Param{pgtype.UUIDOID, [16]byte(v)} }

// UUIDs binds a uuid[].
func UUIDs[T ~[16]byte](v []T) Param {
	out := make([][16]byte, len(v))
	for i, u := range v {
		out[i] = u
	}
	return Param{pgtype.UUIDArrayOID, out}
}

// Bool binds a boolean.
func Bool(v bool) Param { return Param{pgtype.BoolOID, v} }

// Bools binds a boolean[].
func Bools(v []bool) Param { return Param{pgtype.BoolArrayOID, v} }

// Time binds a timestamptz.
func Time(v time.Time) Param { return Param{pgtype.TimestamptzOID, v} }

// Times binds a timestamptz[]; a zero time is null.
func Times(v []time.Time) Param {
	out := make([]*time.Time, len(v))
	for i := range v {
		if !v[i].IsZero() {
			out[i] = &v[i]
		}
	}
	return Param{pgtype.TimestamptzArrayOID, out}
}

// JSON binds a jsonb from its text.
func JSON(v []byte) Param { return Param{pgtype.JSONBOID, v} }
