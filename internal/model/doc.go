// Package model is the protocol as a machine small enough to try everything: a few
// records, three members, one log, and every order in which their steps and their
// misfortunes can come. Nothing imports it; its tests are what it is for.
//
//	go test -v ./internal/model                                    seconds
//	make model                                                     ten minutes, 5 GiB
//
// docs/model.md has the figures.
//
// # What is modelled
//
// One step each: takeover · log row read · runs read · segments listed · blocks read
// · second reading · memory check with look-up · BEGIN with the fence · effect, log
// lock, compare and run · COMMIT (answered, lost before, unanswered and committed or
// aborted later) · settling an unanswered COMMIT · the watch · a revoke, noticed at
// any time later · registering a segment, its blocks in two parts, the swap, memory,
// clean-up. Beside them, as often as the Budget of a World allows: a rebalance, a
// kill that leaves the backend at work, a member that stands still for ever, and a
// failover to a copy that received nothing since any commit.
//
// With HandOver, a member goes on with the queue of a claim that was revoked, until
// it is fenced or the queue is empty. The same member may be assigned the partition
// again meanwhile: then it has two claims, each with an owner, a queue and a cursor,
// and one view, which may be loaded while the old claim's transaction is open. They
// are never in the same transaction.
//
// # What must hold
//
//	DOUBLED    no key has two effects
//	LOST       no position is behind a record whose key has no effect
//	REORDERED  effects come in the order of their partition
//	ENDLESS    there are no more commits than records
//	LOG        the log's keys are those applied
//	VIEW       a view that names the log's head has the log's keys, and no others
//	STUCK      from every state that can be reached, steps without further adversity
//	           lead to everything being applied
//
// The last says that there is no dead end, not that no chance keeps the members busy
// for ever.
//
// # What a reader learns
//
// Which safeguard is there against what. Each can be taken away (Missing), and the
// search returns the shortest sequence of events that breaks the world then: the
// tests hold one for each, and a checker that finds none of them would be worth
// nothing.
//
// # What is not modelled
//
// Dead letters and the fold over them, expiry and retention, widening and the
// generation, external offsets, a takeover that executes after its client gave up,
// two committers for one view, two failovers, an old primary that still serves, time.
package model
