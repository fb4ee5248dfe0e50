// Package ranks holds the import order of this module. Every package belongs to
// an entry of the table; it may import packages of its own entry and of entries
// with a lower rank, never of the same or a higher one, and third-party code
// only from the modules that the entry names. Test helpers may import anything
// and are imported by tests only.
//
// The order keeps the protocol readable from below: what a transaction does can
// be understood without the loop that calls it, and one package each speaks to
// Redis, to the migration runner, to the decoders.
package ranks
