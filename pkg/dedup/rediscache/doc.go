// Package rediscache keeps images of immutable segments' filters, and of gates, in
// Redis, for dedup's rebuilds. It is the only package that speaks to Redis.
//
// Nothing depends on what Redis answers. An image counts only under the digest
// that Postgres keeps, which the caller compares; so the bytes are handed over as
// they came, and every trouble ends in a scan of the blocks:
//
//	Redis is …                         Load        Store    the breaker
//	flushed, evicting, failed over     a miss      stores   stays closed
//	without one part of an image       a miss      stores   stays closed
//	lying: garbage, another's image    hands over  stores   stays closed
//	holding another type at the key    an error    stores   stays closed
//	loading, read-only, out of memory  an error    as Load  counts it
//	slow, hung, gone                   an error    in time  counts it
//	answering with an endless reply    an error    as Load  counts it, and hangs up
//
// After several errors in a row the breaker opens, and calls end at once with
// ErrResting until a pause is over; then one call tries.
//
// The user needs GET, SET and UNLINK on the prefix, in database 0:
//
//	ACL SETUSER name on >password ~effectonce:* resetchannels -@all +get +set +unlink
//
// Another database needs +select, a Cluster +cluster|slots.
package rediscache
