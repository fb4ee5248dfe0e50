// Package demo shows the promise on a machine with nothing but Go: a private Kafka
// and a private Postgres, a stream of orders of which some come twice, members of
// `processor run` one of which is killed with -9 again and again, and beside them
// the consumer most people write, treated the same way. At the end both tables are
// counted against what the producer knows it sent.
//
// Neither table has a unique constraint: what is counted is what each program did.
package demo
