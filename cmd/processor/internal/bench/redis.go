package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"effectonce/pkg/dedup"
	"effectonce/pkg/dedup/rediscache"
	"effectonce/pkg/stream"
)

// errImages says that Redis did not have an image, or another: what was measured is
// not a rebuild from Redis.
var errImages = errors.New("not all filters came from redis")

// fromRedis compares, in turn, a rebuild whose filters come from Redis with one that
// reads all blocks.
func (h *history) fromRedis(ctx context.Context, l *ledger) error {
	if h.redis == "" {
		h.say("a rebuild from Redis is not measured: no --redis")
		return nil
	}
	client, err := rediscache.New(rediscache.Config{
		Addresses: []string{h.redis}, Prefix: l.schema + ":", TTL: time.Hour, Timeout: 10 * time.Second,
	})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }() // what it holds is taken back
	cache := &shelf{Cache: client, ids: map[stream.UUID]bool{}}
	defer cache.clear(ctx)
	plain := l.log
	defer func() { l.log = plain }()
	l.log = plain.Cached(cache)
	if err := l.offer(ctx); err != nil {
		return err
	}
	for round := 1; round <= h.rounds; round++ {
		for _, side := range []struct {
			what string
			log  *dedup.Store
			hits bool
		}{{"rebuild from Postgres", plain, false}, {"rebuild from Redis", plain.Cached(cache), true}} {
			l.log = side.log
			if err := l.takeOver(ctx); err != nil {
				return err
			}
			start := time.Now()
			if err := l.rebuild(ctx); err != nil {
				return err
			}
			h.note(round, side.what, time.Since(start).Seconds(), "s")
			segments := int64(l.view.Stats().Segments)
			if got := l.log.CacheStats(); side.hits && got != (dedup.CacheStats{Hits: segments + 1}) {
				return fmt.Errorf("%w: %+v of %d segments and a gate", errImages, got, segments)
			}
		}
	}
	h.res.RedisOverPostgres = h.ratio("rebuild from Redis", "rebuild from Postgres")
	return nil
}

// offer stores the images of a new owner's filters, as the background does behind a
// rebuild.
func (l *ledger) offer(ctx context.Context) error {
	if err := l.takeOver(ctx); err != nil {
		return err
	}
	if err := l.rebuild(ctx); err != nil {
		return err
	}
	if err := l.log.Offer(ctx, l.behind, behindSettings(), l.view); err != nil {
		return fmt.Errorf("store filters: %w", err)
	}
	return nil
}

// shelf remembers what it holds.
type shelf struct {
	dedup.Cache

	ids map[stream.UUID]bool
}

// Store implements dedup.Cache.
func (s *shelf) Store(ctx context.Context, id stream.UUID, image []byte) error {
	s.ids[id] = true
	return s.Cache.Store(ctx, id, image)
}

// clear takes everything back; what stays ends after an hour.
func (s *shelf) clear(ctx context.Context) {
	for id := range s.ids {
		_ = s.Cache.Store(context.WithoutCancel(ctx), id, nil)
	}
}
