// Package rebalance is this process's membership in the consumer group: which
// partitions it holds, the takeover of each, its release, and what happens when
// the log under a partition changed.
//
//	            assigned                    row locked, database down
//	(not held) ──────────> taking ────────────────────────────────> waiting <─┐
//	     ^                   │ taken                                  │ taken │ fenced,
//	     │ revoked, lost     v                        poll goroutine  v       │ went back
//	     └──────────────── running <──────────────────────────────── arming   │
//	                         │ │                                              │
//	                         │ └──────────────────────────────────────────────┘
//	                         v cause
//	                       stopped
//
// Kafka decides who should hold a partition, Postgres who may commit for it. The
// callbacks here only keep this map true and ask Postgres for claims; that they
// come late, twice or never costs time, not exactness. No callback waits: a row
// that a transaction holds is taken over in the background while its partition is
// paused.
package rebalance
