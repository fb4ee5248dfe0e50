package rediscache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"effectonce/pkg/dedup"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{Addresses: []string{shared(t)}}, nil)
	if image := load(t, c, 1); image != nil {
		t.Errorf("before it was stored: %d bytes", len(image))
	}
	images := map[byte][]byte{
		1: random(t, 100), 2: random(t, 2*partBytes+1<<20), 3: {}, 4: []byte("\x00\r\n$-1\r\n"),
		5: random(t, partBytes-1), 6: random(t, partBytes), 7: random(t, 2*partBytes),
	}
	for n, image := range images {
		store(t, c, n, image)
	}
	for n, image := range images {
		if got := load(t, c, n); got == nil || !bytes.Equal(got, image) {
			t.Errorf("segment %d: %d bytes, stored %d", n, len(got), len(image))
		}
	}
	store(t, c, 1, images[4])
	if got := load(t, c, 1); !bytes.Equal(got, images[4]) {
		t.Error("a second store does not count")
	}
	want := Stats{Hits: 8, Misses: 1, Stores: 8, Breaker: "closed"}
	if diff := cmp.Diff(want, c.Stats()); diff != "" {
		t.Error(diff)
	}
}

// A key is the prefix and the segment's UUID, and expires.
func TestKeys(t *testing.T) {
	t.Parallel()
	address := shared(t)
	c := newCache(t, Config{Addresses: []string{address}}, nil)
	other := newCache(t, Config{Addresses: []string{address}}, nil)
	store(t, c, 7, []byte("seven"))
	if load(t, other, 7) != nil || load(t, c, 8) != nil {
		t.Error("another prefix's or segment's image")
	}
	key := c.prefix + "00000000-0000-0000-0000-000000000007"
	if got := do(t, address, "GET", key); got != "seven" {
		t.Errorf("%s holds %v", key, got)
	}
	if left, ok := do(t, address, "PTTL", key).(int64); !ok || left <= 0 || left > c.ttl.Milliseconds() {
		t.Errorf("it stays for %d ms", left)
	}
}

// The bytes are handed over as they came; the digest in Postgres decides.
func TestGarbageIsPassedThrough(t *testing.T) {
	t.Parallel()
	address := shared(t)
	c := newCache(t, Config{Addresses: []string{address}}, nil)
	for n, garbage := range [][]byte{{}, []byte("garbage"), random(t, 1000), []byte("eofilt\x00\x01")} {
		do(t, address, "SET", c.key(segment(byte(n)), 0), garbage, "PX", 60000)
		image := load(t, c, byte(n))
		if image == nil || !bytes.Equal(image, garbage) {
			t.Errorf("%q became %q", garbage, image)
		}
		if _, err := dedup.ParseFilter(image, dedup.Digest([]byte("the image"))); !errors.Is(err, dedup.ErrImage) {
			t.Errorf("%q: %v", garbage, err)
		}
	}
}

func TestForgotten(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c := newCache(t, Config{Addresses: []string{s.address}}, nil)
	store(t, c, 1, []byte("one"))
	do(t, s.address, "FLUSHALL")
	if load(t, c, 1) != nil {
		t.Error("flushed, and still there")
	}
	store(t, c, 1, []byte("one"))
	if string(load(t, c, 1)) != "one" {
		t.Error("not stored after a flush")
	}
}

// A full server throws out old images for new ones, without an error for anybody.
func TestEvicted(t *testing.T) {
	t.Parallel()
	s := start(t, nil, "--maxmemory", "24mb", "--maxmemory-policy", "allkeys-lru")
	c := newCache(t, Config{Addresses: []string{s.address}}, nil)
	image := random(t, 1<<20)
	for n := range byte(40) {
		store(t, c, n, image)
	}
	found := 0
	for n := range byte(40) {
		if got := load(t, c, n); got != nil {
			found++
			if !bytes.Equal(got, image) {
				t.Errorf("segment %d is another", n)
			}
		}
	}
	if found == 0 || found == 40 {
		t.Errorf("%d of 40 images are there: nothing was evicted, or all", found)
	}
	if stats := c.Stats(); stats.Errors != 0 || stats.Hits != int64(found) {
		t.Errorf("%+v", stats)
	}
}

// A full server that may throw out nothing refuses to store, and goes on to answer.
func TestFull(t *testing.T) {
	t.Parallel()
	s := start(t, nil, "--maxmemory", "2mb", "--maxmemory-policy", "noeviction")
	c := newCache(t, Config{Addresses: []string{s.address}}, func(cfg *Config) { cfg.Failures = 100 })
	store(t, c, 1, []byte("one"))
	var err error
	for n := range byte(20) {
		err = errors.Join(err, c.Store(t.Context(), segment(n+2), random(t, 1<<20)))
	}
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("20 MB in 2 MB: %v", err)
	}
	if string(load(t, c, 1)) != "one" {
		t.Error("what it has is not loaded")
	}
}

// Somebody else's list stands at our key: an error for this one, and none for the
// next; the breaker stays out of it.
func TestWrongType(t *testing.T) {
	t.Parallel()
	address := shared(t)
	c := newCache(t, Config{Addresses: []string{address}}, nil)
	do(t, address, "RPUSH", c.key(segment(1), 0), "a")
	do(t, address, "EXPIRE", c.key(segment(1), 0), 60)
	for range 20 {
		if image, err := c.Load(t.Context(), segment(1)); err == nil || errors.Is(err, ErrResting) || image != nil {
			t.Fatalf("%q, %v", image, err)
		}
	}
	if diff := cmp.Diff(Stats{Errors: 20, Breaker: "closed"}, c.Stats()); diff != "" {
		t.Error(diff)
	}
	store(t, c, 1, []byte("one")) // SET replaces whatever there is
	if string(load(t, c, 1)) != "one" {
		t.Error("not stored over it")
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{Addresses: []string{shared(t)}}, func(cfg *Config) { cfg.MaxBytes = 1000 })
	if err := c.Store(t.Context(), segment(1), make([]byte, 1001)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	store(t, c, 1, make([]byte, 1000))
	if got := load(t, c, 1); len(got) != 1000 {
		t.Errorf("%d bytes", len(got))
	}
	less := newCache(t, Config{Addresses: []string{shared(t)}}, func(cfg *Config) { cfg.MaxBytes = 999 })
	less.prefix = c.prefix
	if image, err := less.Load(t.Context(), segment(1)); !errors.Is(err, ErrTooLarge) || image != nil {
		t.Errorf("loaded %d bytes, %v", len(image), err)
	}
}

// The caller gives up, as when a partition is revoked: that says nothing about
// Redis and is no error of it.
func TestCallerGivesUp(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{Addresses: []string{shared(t)}}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 20 {
		if _, err := c.Load(ctx, segment(1)); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if err := c.Store(ctx, segment(1), []byte("one")); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(Stats{Breaker: "closed"}, c.Stats()); diff != "" {
		t.Error(diff)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{Addresses: []string{shared(t)}}, nil)
	done := make(chan error)
	for n := range byte(32) {
		go func() {
			image := bytes.Repeat([]byte{n}, 50_000)
			err := c.Store(t.Context(), segment(n), image)
			for range 20 {
				got, err2 := c.Load(t.Context(), segment(n))
				if err = errors.Join(err, err2); !bytes.Equal(got, image) {
					err = errors.Join(err, fmt.Errorf("segment %d: got another's image", n))
				}
			}
			done <- err
		}()
	}
	for range 32 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// New waits for nobody.
func TestNewWithoutServer(t *testing.T) {
	t.Parallel()
	c := newCache(t, Config{Addresses: []string{"127.0.0.1:1"}}, func(cfg *Config) { cfg.Timeout = time.Second })
	if _, err := c.Load(t.Context(), segment(1)); err == nil {
		t.Error("loaded from nowhere")
	}
}
