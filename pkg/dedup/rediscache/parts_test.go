package rediscache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"
)

// A part that was evicted, or has expired, makes the image none; which one does not
// matter. What is taken back leaves no part behind.
func TestParts(t *testing.T) {
	t.Parallel()
	address := shared(t)
	c := newCache(t, Config{Addresses: []string{address}}, nil)
	image := random(t, 2*partBytes+1000)
	keys := func() (n int) {
		for part := range 4 {
			n += int(do(t, address, "EXISTS", c.key(segment(1), part)).(int64))
		}
		return n
	}
	for lost := range 3 {
		store(t, c, 1, image)
		if keys() != 3 {
			t.Fatalf("%d parts", keys())
		}
		do(t, address, "DEL", c.key(segment(1), lost))
		if got := load(t, c, 1); got != nil {
			t.Errorf("without part %d: %d bytes", lost, len(got))
		}
	}
	store(t, c, 1, image)
	if got := load(t, c, 1); !bytes.Equal(got, image) {
		t.Errorf("%d bytes, stored %d", len(got), len(image))
	}
	store(t, c, 2, []byte("two"))
	if err := c.Store(t.Context(), segment(1), nil); err != nil || keys() != 0 {
		t.Errorf("%d parts are left, %v", keys(), err)
	}
	if err := c.Store(t.Context(), segment(1), nil); err != nil {
		t.Errorf("taken back twice: %v", err)
	}
	if string(load(t, c, 2)) != "two" {
		t.Error("another image went with it")
	}
}

// A server that always has one more part, or one more to remove, is left.
func TestEndlessParts(t *testing.T) {
	t.Parallel()
	part := fmt.Sprintf("$%d\r\n%s\r\n", partBytes, strings.Repeat("a", partBytes))
	address := fake(t, func(command []string) string {
		if command[0] == "unlink" {
			return ":1\r\n"
		}
		return part
	})
	c := newCache(t, Config{Addresses: []string{address}}, func(cfg *Config) { cfg.MaxBytes = 3 * partBytes })
	if image, err := c.Load(t.Context(), segment(1)); !errors.Is(err, ErrTooLarge) || image != nil {
		t.Errorf("%d bytes, %v", len(image), err)
	}
	if err := c.Store(t.Context(), segment(1), nil); err != nil {
		t.Error(err)
	}
}

// The time limit is a part's: a large image on a slow line takes what it takes.
func TestTimeoutIsForAPart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const parts = 4
		full := fmt.Sprintf("$%d\r\n%s\r\n", partBytes, strings.Repeat("a", partBytes))
		cfg := Config{Addresses: []string{"redis:6379"}, Timeout: time.Second}.withDefaults()
		var asked atomic.Int64
		c := open(cfg, func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			go serve(theirs, func([]string) string {
				<-time.After(cfg.Timeout / 2) // of the fake clock
				if asked.Add(1) == parts {
					return "$1\r\na\r\n"
				}
				return full
			})
			return ours, nil
		})
		defer func() { _ = c.Close() }()
		image, err := c.Load(context.Background(), segment(1))
		if err != nil || len(image) != (parts-1)*partBytes+1 {
			t.Errorf("%d bytes, %v", len(image), err)
		}
	})
}

// Check says what the cache will meet: nobody there, a right that is missing.
func TestCheck(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	c := newCache(t, Config{Addresses: []string{s.address}}, nil)
	if err := c.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if left := do(t, s.address, "DBSIZE"); left != int64(0) {
		t.Errorf("%v keys are left behind", left)
	}
	for _, missing := range []string{"get", "set", "unlink"} {
		setUser(t, s.address, "half on >half ~test:* resetchannels -@all +get +set +unlink -"+missing)
		half := newCache(t, Config{Addresses: []string{s.address}, Login: func() (string, string) { return "half", "half" }}, nil)
		if err := half.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "NOPERM") {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	nobody := newCache(t, Config{Addresses: []string{"127.0.0.1:1"}}, nil)
	if err := nobody.Check(t.Context()); err == nil {
		t.Error("nobody answered")
	}
}

// Whoever asked for it is told once that Redis is left alone, and once that it works.
func TestRests(t *testing.T) {
	t.Parallel()
	var told []bool
	var reply atomic.Pointer[string]
	says := func(text string) { reply.Store(&text) }
	says(loading)
	address := fake(t, func([]string) string { return *reply.Load() })
	c := newCache(t, Config{Addresses: []string{address}}, func(cfg *Config) {
		cfg.Failures, cfg.Pause = 2, time.Millisecond
		cfg.Rests = func(resting bool) { told = append(told, resting) }
	})
	failed := 0
	until(t, "the breaker has opened again and again", func() bool {
		if _, err := c.Load(t.Context(), segment(1)); err != nil && !errors.Is(err, ErrResting) {
			failed++
		}
		return failed == 5
	})
	says(answers)
	until(t, "Redis works", func() bool {
		_, err := c.Load(t.Context(), segment(1))
		return err == nil
	})
	if diff := cmp.Diff([]bool{true, false}, told); diff != "" {
		t.Error(diff)
	}
}

// The client library's own messages come through LogTo.
func TestLogTo(t *testing.T) { //nolint:paralleltest // the library has one logger
	defer redis.SetLogger(quiet{})
	var said atomic.Pointer[string]
	LogTo(func(text string) { said.Store(&text) })
	teller(func(text string) { said.Store(&text) }).Printf(context.Background(), "%s of %d", "one", 2)
	if text := said.Load(); text == nil || *text != "one of 2" {
		t.Errorf("%v", text)
	}
	cfg := Config{Addresses: []string{"127.0.0.1:1"}, Sentinel: "master"}
	c := newCache(t, cfg, nil)
	said.Store(nil)
	if _, err := c.Load(t.Context(), segment(1)); err == nil {
		t.Error("nobody answered")
	}
	if text := said.Load(); text == nil || !strings.Contains(*text, "sentinel") {
		t.Errorf("%v", text)
	}
}
