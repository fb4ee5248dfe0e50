// Package processor moves the records of Kafka topics into Postgres, each business
// key exactly once. It is the library's door: a Config, a table or a handler, and
// Run.
//
// # The promise
//
// In one Postgres transaction: the fence and the new positions, the effect, the
// new fingerprints, dead letters and the audit row. All of it or none. It holds
// inside one Postgres timeline and for the stated scope: a business key is unique
// within its partition, and the partitioner check proves from the data that it
// always comes on that one.
//
// # Who is authoritative
//
//	position, owner, log head    the rows; memory is a copy that the fence and the
//	                             log compare check in every commit
//	who should hold a partition  Kafka's group; it decides who works, never who may
//	                             commit
//	"already done"               the runs of the log; a view in memory only as long
//	                             as its head_id is the log's
//	Kafka's group offset         nobody: a mirror for lag tools
//
// # A partition
//
//	           ┌──────── records ────────┐
//	           v                         │
//	loading ─> idle ─> ready ─> in flight ┤
//	  ^                  ^        │       ├─ committed ─> idle or ready
//	  │                  │        │       │
//	  │               resting <── retry   ├─ fenced ──> dropped, taken over again
//	  └── view dropped ──────────────────┘└─ stop ────> dropped, stopped visibly
//
// A queue belongs to one claim and is in flight at most once. Replacing a claim,
// its queue, the seek and the resume happen only on the poll goroutine, between
// hand-off and AllowRebalance: otherwise a slice from the old cursor lands in the
// new claim and the records between are skipped.
//
// # Invariants
//
//  1. A position moves only in the transaction that applies, or proves as applied,
//     everything below it.
//  2. A key is in the log if and only if a record of it was applied in the
//     transaction that put it there.
//  3. A view is exactly the runs up to its head_id.
//  4. Memory learns after COMMIT was answered, never before.
//  5. Nothing is skipped without a row: a record is applied, repeats a key that is,
//     or is a dead letter.
//
// # What happens when
//
//	killed anywhere                 the transaction is there or not; the next owner
//	                                takes over and begins at the position
//	the group takes it away         what was polled is committed, one transaction a
//	                                partition, until the next owner has taken over and the
//	                                fence says so
//	frozen past its session         its next commit fails at the fence; a backend it
//	                                left behind is ended by the takeover
//	COMMIT without an answer        the position row is read under a row lock: at the
//	                                end of the batch: done; at its start: run again
//	the database went back          fence, log compare or the watch see it: what is
//	                                known about the partition is dropped, it is taken
//	                                over again and seeks
//	two writers for one log         the head compare fails for one: it learns the runs
//	                                between and checks again
//	a record the table refuses      it is found by halving inside savepoints, becomes a
//	                                dead letter, and all others apply
//	the set-up refuses everything   stop visibly; no topic is emptied into dead letters
package processor
