// Package dedup recognises a record that was applied before. It owns the tables
// logs and runs (and segments and blocks).
//
// A business key becomes a fingerprint of 16 bytes. Each scope has one log of
// runs, and each log one view in memory: the exact set of its unsealed keys,
// named by the head_id of the last run it contains.
//
// Rule of the log: a transaction may append a run only if each of its keys was
// looked for in all earlier runs of this very log. The view is exactly the runs
// up to its head_id, and Append raises unless head_id is still the log's. A
// duplicate is a claim about the log just the same, so a batch that brings no new
// key appends an (empty) run too.
//
// Nothing here is the authority for "already done" but the rows: a view learns a
// run after its COMMIT was answered, and a view that cannot prove what lies
// between its head and the log's is dropped and loaded again.
package dedup
