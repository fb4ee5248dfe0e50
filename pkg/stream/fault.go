package stream

import "fmt"

// Stage is the step that refused a record.
type Stage string

// The stages of a record on its way to the database.
const (
	StageDecode Stage = "decode" // bytes to fields
	StageKey    Stage = "key"    // fields to business key
	StageEncode Stage = "encode" // fields to columns
	StageEffect Stage = "effect" // the sink's own statement
)

// Fault says why one record cannot be applied; it becomes a dead letter. Detail
// is a sentence for people and never carries payload beyond a column, constraint
// or path name.
type Fault struct {
	Index  int // in Batch.Records
	Stage  Stage
	Code   string // SQLSTATE where the database spoke, else empty
	Reason string // one fixed word: not_json, missing_key, tombstone, …
	Detail string
}

func (f *Fault) Error() string {
	if f.Code != "" {
		return fmt.Sprintf("%s: %s (SQLSTATE %s): %s", f.Stage, f.Reason, f.Code, f.Detail)
	}
	return fmt.Sprintf("%s: %s: %s", f.Stage, f.Reason, f.Detail)
}
