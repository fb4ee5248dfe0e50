// Package storm is the proof under rebalance storms: a group of member processes on
// a real Kafka and a real Postgres, to which members come, from which they go, and
// in which they freeze and are killed, while a backlog never runs dry.
//
//	calm      half of the time without events: what the group can do
//	storm     events at a rate, of the kinds asked for
//	calm      the other half, so that a drift of the machine is on both sides
//	restarts  SIGTERM and start, one at a time, each once the group has settled
//	kills     kill -9 and start, likewise, of some members at the same moment, until
//	          there are enough or the time is up; each kill waits out a session, so one
//	          at a time few fit
//	drain     the backlog is worked off, the members end, and everything is counted
//
// Exactness is counted from two things the pipeline does not write its books in: the
// topic, as a client without a group reads it, and the effect table, which has no
// unique constraint. When and by whom a partition was committed comes from the audit
// trail, and which process a claim belonged to from the members' logs.
//
// Between two commits of a partition lies a gap:
//
//	unmoved    both were of one claim: the group never took the partition away
//	frozen     likewise, but its process was frozen between: that is the event itself
//	reclaimed  both were of one process, which had to take over its own partition
//	moved      they were of two processes
package storm
