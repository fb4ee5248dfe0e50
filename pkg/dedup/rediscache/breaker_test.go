package rediscache

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bubble is a cache on a fake clock, with a server inside that answers as told.
type bubble struct {
	*Cache
	reply atomic.Pointer[string]
	asked atomic.Int64
}

const (
	answers = "$3\r\none\r\n"
	loading = "-LOADING Redis is loading the dataset in memory\r\n"
	hangs   = ""
)

func newBubble(t *testing.T) *bubble {
	t.Helper()
	b := &bubble{}
	cfg := Config{Addresses: []string{"redis:6379"}, Failures: 3, Pause: 10 * time.Second}.withDefaults()
	b.Cache = open(cfg, func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		go serve(theirs, func([]string) string {
			b.asked.Add(1)
			return *b.reply.Load()
		})
		return ours, nil
	})
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *bubble) load(reply string) error {
	b.reply.Store(&reply)
	_, err := b.Load(context.Background(), segment(1))
	return err
}

// The story of a Redis that is loading, then hangs, then is well again.
func TestBreaker(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		state := func(want Stats, asked int64) {
			t.Helper()
			if diff := cmp.Diff(want, b.Stats()); diff != "" || b.asked.Load() != asked {
				t.Fatalf("asked %d times, want %d: %s", b.asked.Load(), asked, diff)
			}
		}
		fails := func(reply string) {
			t.Helper()
			if err := b.load(reply); err == nil || errors.Is(err, ErrResting) {
				t.Fatal(err)
			}
		}
		works := func() {
			t.Helper()
			if err := b.load(answers); err != nil {
				t.Fatal(err)
			}
		}
		rests := func() {
			t.Helper()
			if err := b.load(answers); !errors.Is(err, ErrResting) {
				t.Fatal(err)
			}
		}

		fails(loading)
		fails(loading)
		works() // they were not in a row
		fails(loading)
		fails(loading)
		state(Stats{Hits: 1, Errors: 4, Breaker: "closed"}, 5)
		fails(loading)
		state(Stats{Hits: 1, Errors: 5, Breaker: "open"}, 6)

		time.Sleep(10*time.Second - time.Nanosecond) //nolint:forbidigo // the bubble's clock
		rests()
		state(Stats{Hits: 1, Errors: 5, Skipped: 1, Breaker: "open"}, 6)

		time.Sleep(time.Nanosecond) //nolint:forbidigo // the bubble's clock
		began := time.Now()
		fails(hangs)
		if took := time.Since(began); took != b.timeout {
			t.Errorf("a hung server was waited for %s", took)
		}
		rests()
		state(Stats{Hits: 1, Errors: 6, Skipped: 2, Breaker: "open"}, 7)

		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		works()
		works()
		state(Stats{Hits: 3, Errors: 6, Skipped: 2, Breaker: "closed"}, 9)
		fails(loading) // what was before the pause is forgotten
		fails(loading)
		works()
	})
}

// While one call tries a Redis that was in trouble, the others do not.
func TestBreakerLetsOneTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		for range 3 {
			_ = b.load(loading)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		tried := make(chan error)
		go func() { tried <- b.load(hangs) }()
		synctest.Wait()
		for range 5 {
			if err := b.load(hangs); !errors.Is(err, ErrResting) {
				t.Error(err)
			}
		}
		if err := <-tried; err == nil || errors.Is(err, ErrResting) {
			t.Error(err)
		}
		if b.asked.Load() != 4 {
			t.Errorf("asked %d times", b.asked.Load())
		}
	})
}

// The caller of the one call that tries gives up: the try is not lost for ever.
func TestBreakerAfterAnAbandonedTry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		for range 3 {
			_ = b.load(loading)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := b.Load(ctx, segment(1)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		time.Sleep(10 * time.Second) //nolint:forbidigo // the bubble's clock
		if err := b.load(answers); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff(Stats{Hits: 1, Errors: 3, Breaker: "closed"}, b.Stats()); diff != "" {
			t.Error(diff)
		}
	})
}

// A caller in a hurry: its own deadline ends the call, before the limit does.
func TestCallersDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBubble(t)
		reply := hangs
		b.reply.Store(&reply)
		for range 5 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			began := time.Now()
			_, err := b.Load(ctx, segment(1))
			cancel()
			if took := time.Since(began); err == nil || errors.Is(err, ErrResting) || took != time.Millisecond {
				t.Errorf("%v after %s", err, took)
			}
		}
		if stats := b.Stats(); stats.Errors != 0 || stats.Breaker != "closed" {
			t.Errorf("%+v", stats)
		}
	})
}
