// Package e2e runs real member processes against a real Kafka and a real Postgres,
// hurts them, and holds what is left against the topic.
//
// The proof is in three parts. The stream (stream_test.go) writes a ledger: events
// of accounts, a tenth of them redelivered with the same event id, some with
// another content, and Kafka transactions that are aborted; for scope topic, copies
// on several partitions at once. The world (world_test.go, member_test.go) runs
// members as the runtime role, each behind a Postgres proxy that can cut and hold.
// The checker (check.go) compares three things that do not know of each other: the
// topic as an independent client reads it, the table of effects, which has no unique
// constraint but where a test adds one, and our own rows, segments included. It holds
// at every committed moment, so it is asked after every fault and not only at the
// end, and looks back along the log to what had been applied when a record was
// passed over.
//
// A checker that cannot fail proves nothing: check_test.go tampers with each fact,
// and mutant_test.go runs members whose safeguards are switched off.
package e2e
