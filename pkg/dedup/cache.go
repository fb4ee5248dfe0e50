package dedup

import (
	"context"
	"sync/atomic"

	"effectonce/pkg/stream"
)

// Cache keeps filter images outside the database, so that a rebuild loads two or
// three bytes a key instead of scanning seventeen. An image is one of a live
// segment's filter, under the segment's id, or of a log's gate, under an id that was
// drawn for it.
//
// A cache may forget, be slow, fail, or answer with another image or with garbage:
// each changes speed only. It is asked at a rebuild and told after one, on a
// background goroutine, never between BEGIN and COMMIT and never by a committer.
// What Load returns counts only if ParseFilter takes it under the digest that
// Postgres keeps; otherwise the filter is built from the blocks, as after an error.
//
// Both methods may be called by several goroutines at once. They bound themselves
// in time, return early when the context ends, and try nothing a second time: nor
// should the caller. Calls for different ids are in no order. What an id stands for
// never changes, so two stores of one are the same bytes, and a Store that returned
// an error may have happened.
type Cache interface {
	// Load returns the image stored under the id, nil and nil if there is none.
	// The bytes are the caller's.
	Load(ctx context.Context, id stream.UUID) ([]byte, error)
	// Store offers an image. It does not keep the slice. Nil takes the image back:
	// nobody will ask for it again.
	Store(ctx context.Context, id stream.UUID, image []byte) error
}

// CacheStats counts, since Cached, how often the cache helped.
type CacheStats struct {
	Hits     int64 // images that were taken
	Misses   int64 // there was none
	Rejected int64 // there was one, and it was not what Postgres says it is
	Errors   int64 // of Load and Store
	Stores   int64
}

// Cached returns a store that asks cache for filters at a rebuild, and offers it
// those that were made. Nil is the store as it is.
func (s *Store) Cached(cache Cache) *Store {
	if cache == nil {
		return s
	}
	c := *s
	c.tier = &tier{cache: cache}
	return &c
}

// CacheStats returns the counters, all zero without a cache.
func (s *Store) CacheStats() CacheStats {
	t := s.tier
	if t == nil {
		return CacheStats{}
	}
	return CacheStats{
		Hits: t.hits.Load(), Misses: t.misses.Load(), Rejected: t.rejected.Load(), Errors: t.errors.Load(), Stores: t.stores.Load(),
	}
}

// tier is a cache as rebuilds see it.
type tier struct {
	cache Cache

	hits, misses, rejected, errors, stores atomic.Int64
}

// load returns the filter of this image, nil for whatever reason there is none.
func (t *tier) load(ctx context.Context, id stream.UUID, digest []byte) *Filter {
	if len(digest) != 32 || ctx.Err() != nil {
		return nil
	}
	image, err := t.cache.Load(ctx, id)
	switch {
	case err != nil:
		t.errors.Add(1)
		return nil
	case image == nil:
		t.misses.Add(1)
		return nil
	}
	f, err := ParseFilter(image, [32]byte(digest))
	if err != nil {
		t.rejected.Add(1)
		return nil
	}
	t.hits.Add(1)
	return f
}

func (t *tier) store(ctx context.Context, id stream.UUID, image []byte) error {
	if err := t.cache.Store(ctx, id, image); err != nil {
		t.errors.Add(1)
		return err
	}
	if image != nil {
		t.stores.Add(1)
	}
	return nil
}
