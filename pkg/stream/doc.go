// Package stream holds the nouns that every other package speaks: Partition,
// Record, Value, Batch, Fault and Claim. It imports the standard library only.
package stream
