package decode

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"effectonce/pkg/stream"
)

// The fixed words of a decode fault.
const (
	tombstone      = "tombstone"
	tooLarge       = "too_large"
	notJSON        = "not_json"
	badUTF8        = "bad_utf8"
	duplicateName  = "duplicate_name"
	notObject      = "not_object"
	tooDeep        = "too_deep"
	tooManyMembers = "too_many_members"
	badTimestamp   = "bad_timestamp"
)

func fault(reason, format string, args ...any) *stream.Fault {
	return &stream.Fault{Stage: stream.StageDecode, Reason: reason, Detail: fmt.Sprintf(format, args...)}
}

// refuse turns an error of the walk into a fault. The token reader's own texts
// quote what they stumbled over, which is payload, so only its position is used.
func (d *Decoder) refuse(err error) *stream.Fault {
	at, within := d.json.InputOffset(), d.json.StackPointer()
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at, within = syntax.ByteOffset, syntax.JSONPointer
	}
	where := fmt.Sprintf("at byte %d", at)
	if within != "" {
		where += ", in " + shown(within)
	}
	switch {
	case errors.Is(err, errTooDeep):
		return fault(tooDeep, "more than %d objects and arrays inside one another, %s", d.plan.limits.Depth, where)
	case errors.Is(err, errTooManyMembers):
		return fault(tooManyMembers, "an object with more than %d members, %s", d.plan.limits.Members, where)
	case errors.Is(err, jsontext.ErrDuplicateName):
		return fault(duplicateName, "an object has the same member name twice, %s", where)
	case errors.Is(err, io.EOF):
		return fault(notJSON, "the document is empty")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return fault(notJSON, "the document ends too early, %s", where)
	case notUnicode(d.doc[min(at, int64(len(d.doc))):]):
		return fault(badUTF8, "not UTF-8, or half of a surrogate pair, %s", where)
	default:
		return fault(notJSON, "not JSON, %s", where)
	}
}

// notUnicode tells whether the token reader stopped here because no Unicode text
// has such a character: bytes that are not UTF-8, or an escaped surrogate without
// its other half.
func notUnicode(rest []byte) bool {
	if len(rest) == 0 {
		return false
	}
	if r, size := utf8.DecodeRune(rest); r == utf8.RuneError && size == 1 {
		return true
	}
	if len(rest) < 6 || rest[0] != '\\' || rest[1] != 'u' {
		return false
	}
	unit, err := strconv.ParseUint(string(rest[2:6]), 16, 16)
	return err == nil && utf16.IsSurrogate(rune(unit))
}

// shownBytes is how much of a pointer a fault shows: names are the producer's,
// and may be as long as the document.
const shownBytes = 128

// shown quotes a pointer for people, on one line and without control characters,
// which neither a log nor a text column takes.
func shown(p jsontext.Pointer) string {
	if len(p) <= shownBytes {
		return strconv.Quote(string(p))
	}
	cut := shownBytes
	for !utf8.RuneStart(p[cut]) {
		cut--
	}
	return strconv.Quote(string(p[:cut])) + "…"
}

func kindName(k jsontext.Kind) string {
	switch k {
	case jsontext.KindBeginArray:
		return "an array"
	case jsontext.KindString:
		return "a string"
	case jsontext.KindNumber:
		return "a number"
	case jsontext.KindNull:
		return "null"
	default:
		return "a boolean"
	}
}
