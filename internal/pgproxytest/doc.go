// Package pgproxytest is a TCP proxy for tests that stands in front of a real
// Postgres, understands the framing of protocol v3, and injects one fault at a
// time around a COMMIT:
//
//	client ──frontend──> proxy ──────────> server
//	       <──────────── proxy <──backend──
//
//	CutBeforeCommit   what came before COMMIT is forwarded, COMMIT is not; both sides are closed
//	CutAfterCommit    COMMIT is forwarded; when the server said it committed, both sides are closed
//	HoldReply         COMMIT is forwarded; the server's answer waits for Release
//
// or around a statement before it, as if the client or the network stood still
// there; the server's side stays open even if the client is killed meanwhile:
//
//	HoldBefore        the statement and all behind it wait for Release
//	HoldBehind        the statement is forwarded; all behind it waits for Release
//
// A COMMIT is a simple Query or a Parse whose text is COMMIT. A fault is spent
// only by a COMMIT that the server carries out: where a guard raised in front of
// it, or it was answered with a rollback, the answer passes and the fault waits
// for the next one. TLS and GSS encryption are refused as a server without
// them refuses; cancel requests are passed on.
package pgproxytest
