// Package offsets owns the positions: which offset of which partition is applied
// next, who may move it, and the rows they belong to. It owns the tables
// pipelines, topics, positions, stops and decisions.
//
// Every decision stands in one statement. A position moves only in the
// transaction of a batch, through Fence, whose guard raises, or by a decision that is
// written down, through Move; a claim is made only by Takeover, which writes a new
// owner. Functions here return statements or take the transaction; none begins or
// commits.
package offsets
