package rediscache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/redis/go-redis/v9"

	"effectonce/pkg/dedup"
	"effectonce/pkg/stream"
)

// ErrResting says that Redis failed several times in a row and is left alone for
// a while. Go on without it.
var ErrResting = errors.New("redis failed several times and is left alone for a while")

// ErrTooLarge says that an image is larger than Config.MaxBytes, and was not sent,
// or not read to its end.
var ErrTooLarge = errors.New("filter image is larger than redis may hold")

// partBytes is the most that lies under one key. An image is its parts of this size
// and, behind them, one that is smaller: a part that is missing makes it none, and
// no call has to move more than this within the time limit.
const partBytes = 4 << 20

// Cache is a dedup.Cache in Redis.
type Cache struct {
	client  redis.UniversalClient
	breaker circuitbreaker.CircuitBreaker[any]
	prefix  string
	ttl     time.Duration
	timeout time.Duration
	max     int64

	hits, misses, stores, errors, skipped atomic.Int64
}

var _ dedup.Cache = (*Cache)(nil)

// New returns a cache that connects when it is first used: a Redis that is down
// stops nobody from starting. Call Close in the end.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	return open(cfg, netDialer(cfg)), nil
}

// open takes a configuration without gaps.
func open(cfg Config, dial dialer) *Cache {
	c := &Cache{client: connect(cfg, dial), prefix: cfg.Prefix, ttl: cfg.TTL, timeout: cfg.Timeout, max: cfg.MaxBytes}
	breaker := circuitbreaker.NewBuilder[any]().
		WithFailureThreshold(uint(cfg.Failures)).WithDelay(cfg.Pause).WithSuccessThreshold(1)
	if cfg.Rests != nil {
		breaker.OnStateChanged(func(e circuitbreaker.StateChangedEvent) {
			switch {
			case e.OldState == circuitbreaker.ClosedState:
				cfg.Rests(true)
			case e.NewState == circuitbreaker.ClosedState:
				cfg.Rests(false)
			}
		})
	}
	c.breaker = breaker.Build()
	return c
}

// Close ends all connections.
func (c *Cache) Close() error { return c.client.Close() }

// Load implements dedup.Cache. The bytes are what Redis answered.
func (c *Cache) Load(ctx context.Context, id stream.UUID) ([]byte, error) {
	var parts [][]byte
	for size := int64(0); ; {
		var part []byte
		err := c.call(ctx, func(ctx context.Context) (err error) {
			part, err = c.client.Get(ctx, c.key(id, len(parts))).Bytes()
			return err
		})
		switch size += int64(len(part)); {
		case errors.Is(err, redis.Nil):
			c.misses.Add(1)
			return nil, nil
		case err == nil && size > c.max:
			c.errors.Add(1)
			err = ErrTooLarge
		}
		if err != nil {
			return nil, fmt.Errorf("load filter image: %w", err)
		}
		if parts = append(parts, part); len(part) < partBytes {
			break
		}
	}
	c.hits.Add(1)
	if len(parts) == 1 {
		return parts[0], nil
	}
	return bytes.Join(parts, nil), nil
}

// Store implements dedup.Cache. An image that is ErrTooLarge will always be.
func (c *Cache) Store(ctx context.Context, id stream.UUID, image []byte) error {
	if image == nil {
		return c.takeBack(ctx, id)
	}
	if int64(len(image)) > c.max {
		c.errors.Add(1)
		return fmt.Errorf("store filter image: %w: %d bytes", ErrTooLarge, len(image))
	}
	for n := 0; ; n++ {
		part := image[:min(len(image), partBytes)]
		err := c.call(ctx, func(ctx context.Context) error { return c.client.Set(ctx, c.key(id, n), part, c.ttl).Err() })
		if err != nil {
			return fmt.Errorf("store filter image: %w", err)
		}
		if image = image[len(part):]; len(part) < partBytes {
			break
		}
	}
	c.stores.Add(1)
	return nil
}

// takeBack removes the parts of an image, as far as there are any in a row.
func (c *Cache) takeBack(ctx context.Context, id stream.UUID) error {
	for n := range int(c.max/partBytes) + 1 {
		var removed int64
		err := c.call(ctx, func(ctx context.Context) (err error) {
			removed, err = c.client.Unlink(ctx, c.key(id, n)).Result()
			return err
		})
		if err != nil {
			return fmt.Errorf("take filter image back: %w", err)
		}
		if removed == 0 {
			break
		}
	}
	return nil
}

// Check asks Redis for all that the cache needs, with an image of no segment, and
// returns what is wrong: Redis does not answer, or the user may not. The cache works
// with a Redis that comes, or comes back, later.
func (c *Cache) Check(ctx context.Context) error {
	var nobody stream.UUID
	if err := c.Store(ctx, nobody, []byte{}); err != nil {
		return err
	}
	if _, err := c.Load(ctx, nobody); err != nil {
		return err
	}
	return c.Store(ctx, nobody, nil)
}

// key is where a part of an image lies.
func (c *Cache) key(id stream.UUID, part int) string {
	if part == 0 {
		return c.prefix + id.String()
	}
	return c.prefix + id.String() + ":" + strconv.Itoa(part)
}

// call asks Redis within the time limit, if the breaker lets it.
func (c *Cache) call(ctx context.Context, ask func(context.Context) error) error {
	if !c.breaker.TryAcquirePermit() {
		c.skipped.Add(1)
		return ErrResting
	}
	limited, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := ask(limited)
	switch {
	case err == nil, errors.Is(err, redis.Nil):
		c.breaker.RecordSuccess()
	case gaveUp(ctx): // that says nothing about Redis
		if c.breaker.IsHalfOpen() {
			c.breaker.RecordFailure() // gives the one permit back: the next try is after another pause
		}
	case redis.HasErrorPrefix(err, "WRONGTYPE"): // this key's fault
		c.errors.Add(1)
		c.breaker.RecordSuccess()
	default:
		c.errors.Add(1)
		c.breaker.RecordFailure()
	}
	return err
}

// gaveUp reports whether the caller did not want to wait until the limit. A socket's
// deadline may pass a moment before the context with the same one ends.
func gaveUp(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// Stats counts calls since New by how they ended.
type Stats struct {
	Hits    int64  // Load returned bytes; whether they counted is the caller's to say
	Misses  int64  // Load returned nil
	Stores  int64  // Store was answered with OK
	Errors  int64  // of both; a call that its caller gave up is none
	Skipped int64  // calls that ended with ErrResting
	Breaker string // closed, open or half-open
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	return Stats{
		Hits: c.hits.Load(), Misses: c.misses.Load(), Stores: c.stores.Load(), Errors: c.errors.Load(),
		Skipped: c.skipped.Load(), Breaker: c.breaker.State().String(),
	}
}
