// Package embedded starts what the demo needs on a machine with nothing but Go:
// a private Postgres and a private Kafka, each kept by a child process of this
// very binary.
//
// A child ends with its parent, however that ends: it holds the read end of a pipe
// whose only write end is the parent's, and stops what it keeps when the pipe
// closes. On Linux the kernel tells it as well. The first line of the pipe is the
// child's orders as JSON, so no secret is ever an argument; the first line of its
// standard output is its answer.
//
// initdb refuses root. As root the keeper of Postgres is a copy of the binary under
// an unprivileged account, in a directory that account owns.
package embedded
