package dedup

import (
	"context"

	"effectonce/pkg/stream"
)

// Cache keeps filter images of live segments outside the database, so that a
// rebuild loads one or two bytes a key instead of scanning seventeen.
//
// A cache may forget, be slow, fail, or answer with another segment's image or
// with garbage: each changes speed only. It is asked at a rebuild and told after
// one, on a background goroutine, never between BEGIN and COMMIT and never by a
// committer. What Load returns counts only if ParseFilter takes it under the
// digest that Postgres keeps; otherwise the filter is built from the blocks, as
// after an error.
//
// Both methods may be called by several goroutines at once. They bound themselves
// in time, return early when the context ends, and try nothing a second time: nor
// should the caller. Calls for different segments are in no order. A segment never
// changes, so two stores of one are the same bytes, and a Store that returned an
// error may have happened.
type Cache interface {
	// Load returns the image stored for the segment, nil and nil if there is none.
	// The bytes are the caller's.
	Load(ctx context.Context, segment stream.UUID) ([]byte, error)
	// Store offers the image of a live segment. It does not keep the slice.
	Store(ctx context.Context, segment stream.UUID, image []byte) error
}
