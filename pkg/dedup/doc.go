// Package dedup recognises a record that was applied before. It owns the tables
// logs, runs, segments and blocks.
//
// A business key becomes a fingerprint of 16 bytes. Each scope has one log of
// runs, named by its head_id; older runs lie sorted in segments, which are named
// together by the log's manifest. Each log has one view in memory: the exact set of
// its unsealed keys, and filters over the segments.
//
// Rule of the log: a transaction may append a run only if each of its keys was
// looked for in all earlier runs of this very log. The view is exactly the runs up
// to its head_id, and Append raises unless head_id is still the log's. A duplicate
// is a claim about the log just the same, so a batch that brings no new key appends
// an (empty) run too.
//
// A batch's keys are decided in two steps. Check asks memory: what is in the exact
// set is a duplicate, what the gate has not is new, the rest is "maybe". LookUp
// asks the segments about the rest, in one statement that says under which manifest
// it ran; an answer under another manifest than the view's is none.
//
//	       Append, Learn          Seal                Compact                   Expire
//	batch ──────────────> runs ──────────> segment ──────────────> larger segment ──────> gone
//	                      (exact set)      (gate, segment's filter)
//
// Seal, Compact, Expire and Rebuild need no claim and may be killed anywhere. A segment is
// registered as building under a random id, its blocks are written in transactions
// of their own, and one short transaction, swap_segments, makes it live: under the
// log's lock, if the manifest is the one that was read, the runs are the view's and
// every block and key is there. It gives the log a new manifest. Memory follows:
//
//	the gate has the keys        before the swap is sent
//	the new manifest, and with   when COMMIT is answered, or anybody meets the manifest that
//	it the exact set lets go     was sent; until then nothing leaves the exact set
//	somebody else's manifest     ErrDropView: the view is loaded again, and inherits the
//	                             filters of the old one as far as they are proven
//
// In scope topic many members append to one log, and a moved head is the normal case.
// Behind the effect, Hold locks the log and has the view learn the runs in between;
// Overtaken says whether they have a key of the batch. If not, Append follows, and
// nothing is done twice. Follow is the same look without the lock.
//
// What a sealer wrote and a database that went back has lost is found by these
// comparisons, never by what somebody remembers: clean-up reads what is sealed and
// dead in the statement that removes it.
//
// Nothing here is the authority for "already done" but the rows: a view learns a
// run after its COMMIT was answered, and a view that cannot prove what lies
// between its head and the log's is dropped and loaded again.
package dedup
