package rediscache

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"effectonce/internal/proctest"
)

// The server is killed and comes back: calls fail meanwhile, at once, and nothing
// has to be started anew. It has forgotten everything.
func TestKilled(t *testing.T) {
	t.Parallel()
	port := proctest.Ports(t, 1)[0]
	run := func() *server { return startAt(t, port, nil, "--port", strconv.Itoa(port)) }
	s := run()
	c := newCache(t, Config{Addresses: []string{s.address}}, func(cfg *Config) { cfg.Pause = time.Millisecond })
	store(t, c, 1, []byte("one"))
	s.kill(t)
	if image, err := c.Load(t.Context(), segment(1)); err == nil {
		t.Errorf("a dead server answered %q", image)
	}
	if err := c.Store(t.Context(), segment(2), []byte("two")); err == nil {
		t.Error("a dead server stored")
	}
	run()
	until(t, "the cache has found the server again", func() bool { return c.Store(t.Context(), segment(2), []byte("two")) == nil })
	if got := load(t, c, 1); got != nil {
		t.Errorf("%q outlived the server", got)
	}
	if string(load(t, c, 2)) != "two" {
		t.Error("what was stored afterwards is gone")
	}
}

// A restarted server has closed all pooled connections. None of them costs an
// error: the pool looks at them first.
func TestStaleConnections(t *testing.T) {
	t.Parallel()
	port := proctest.Ports(t, 1)[0]
	run := func() *server { return startAt(t, port, nil, "--port", strconv.Itoa(port)) }
	s := run()
	c := newCache(t, Config{Addresses: []string{s.address}}, nil)
	var wg sync.WaitGroup
	for n := range byte(poolSize) {
		wg.Go(func() { _ = c.Store(t.Context(), segment(n), random(t, 1<<20)) })
	}
	wg.Wait()
	s.kill(t)
	run()
	for n := range byte(poolSize) {
		load(t, c, n)
	}
	if stats := c.Stats(); stats.Errors != 0 {
		t.Errorf("%+v", stats)
	}
}

// proxy passes bytes on to an address, except that answers wait while held.
type proxy struct {
	address string
	mu      sync.RWMutex // held for writing: answers wait
}

func newProxy(t *testing.T, to string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: listener.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			pass := func(to, from net.Conn, wait bool) {
				defer func() { _, _ = to.Close(), from.Close() }()
				for b := make([]byte, 64<<10); ; {
					n, err := from.Read(b)
					if wait {
						p.mu.RLock()
						p.mu.RUnlock() //nolint:staticcheck // passing through is the point
					}
					if _, err2 := to.Write(b[:n]); err != nil || err2 != nil {
						return
					}
				}
			}
			wg.Go(func() { pass(out, in, false) })
			wg.Go(func() { pass(in, out, true) })
		}
	})
	return p
}

// The server answers after 2 s. Calls end at their limit, and the late answer to
// one question is never taken for the answer to the next.
func TestSlow(t *testing.T) {
	t.Parallel()
	p := newProxy(t, shared(t))
	const limit = 100 * time.Millisecond
	c := newCache(t, Config{Addresses: []string{p.address}}, func(cfg *Config) { cfg.Failures = 100 })
	store(t, c, 1, []byte("one"))
	store(t, c, 2, []byte("two"))
	c.timeout = limit

	p.mu.Lock()
	began := time.Now()
	late := time.AfterFunc(2*time.Second, p.mu.Unlock)
	for range 4 {
		if image, err := c.Load(t.Context(), segment(1)); err == nil {
			t.Errorf("%q came in time", image)
		}
	}
	if err := c.Store(t.Context(), segment(3), []byte("three")); err == nil {
		t.Error("stored in time")
	}
	if took := time.Since(began); took > 5*limit+time.Second {
		t.Errorf("five calls took %s", took)
	}
	if late.Stop() { // now, and not only after 2 s
		p.mu.Unlock()
	}
	c.timeout = patience
	for range 10 {
		if got := load(t, c, 2); string(got) != "two" {
			t.Fatalf("asked for two, got %q", got)
		}
	}
	if stats := c.Stats(); stats.Errors != 5 {
		t.Errorf("%+v", stats)
	}
}

// A server that accepts and never says a word, not even to the handshake.
func TestHung(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	c := newCache(t, Config{Addresses: []string{listener.Addr().String()}}, func(cfg *Config) {
		cfg.Timeout, cfg.Failures, cfg.Pause = 50*time.Millisecond, 3, time.Hour
	})
	for range 3 {
		began := time.Now()
		if _, err := c.Load(t.Context(), segment(1)); err == nil || errors.Is(err, ErrResting) {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("it took %s", took)
		}
	}
	for range 1000 { // no more waiting
		if _, err := c.Load(t.Context(), segment(1)); !errors.Is(err, ErrResting) {
			t.Fatal(err)
		}
	}
	if stats := c.Stats(); stats.Errors != 3 || stats.Skipped != 1000 || stats.Breaker != "open" {
		t.Errorf("%+v", stats)
	}
}

// Errors that a server answers with while it is in trouble: each is an error, is
// counted, opens the breaker, and is asked once.
func TestErrorReplies(t *testing.T) {
	t.Parallel()
	for _, reply := range []string{
		"-LOADING Redis is loading the dataset in memory", "-READONLY You can't write against a read only replica.",
		"-MASTERDOWN Link with MASTER is down", "-CLUSTERDOWN Hash slot not served", "-TRYAGAIN Multiple keys", "-BUSY Redis is busy",
		"-NOAUTH Authentication required.", "-NOPERM no permissions", "-OOM command not allowed", "-MISCONF errors writing to disk",
		"-ERR max number of clients reached", "-MOVED 1 127.0.0.1:1", "-", "-\xff\x00",
	} {
		t.Run(strings.ToLower(strings.Trim(strings.Fields(reply + " x")[0], "-")), func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int64
			address := fake(t, func([]string) string {
				calls.Add(1)
				return reply + "\r\n"
			})
			c := newCache(t, Config{Addresses: []string{address}}, func(cfg *Config) { cfg.Failures, cfg.Pause = 4, time.Hour })
			for range 2 {
				if image, err := c.Load(t.Context(), segment(1)); err == nil || image != nil {
					t.Errorf("load: %q, %v", image, err)
				}
				if err := c.Store(t.Context(), segment(1), []byte("one")); err == nil {
					t.Error("stored")
				}
			}
			if stats := c.Stats(); stats != (Stats{Errors: 4, Breaker: "open"}) {
				t.Errorf("%+v", stats)
			}
			if calls.Load() != 4 {
				t.Errorf("4 calls were sent %d times", calls.Load())
			}
		})
	}
}

// Replies that are none. Each ends in an error: no panic, no memory given for
// bytes that never come, no wait beyond the limit.
func TestHostileReplies(t *testing.T) {
	t.Parallel()
	for name, reply := range map[string]string{
		"a string of 9 EB":        "$9223372036854775807\r\n",
		"a string of 9 EB less":   "$9223372036854775800\r\n",
		"a longer number":         "$99999999999999999999999\r\n",
		"a string over the max":   "$4194305\r\n",
		"a negative length":       "$-5\r\n",
		"no length":               "$\r\n",
		"no number":               "$x\r\n",
		"a list of 2 billion":     "*2000000000\r\n",
		"a map of 2 billion":      "%2000000000\r\n",
		"a set of 2 billion":      "~2000000000\r\n",
		"pushes":                  ">2000000000\r\n",
		"an attribute":            "|2000000000\r\n",
		"an error string":         "!2000000000\r\n",
		"a verbatim string":       "=2000000000\r\n",
		"lists in lists":          strings.Repeat("*1\r\n", 1<<20),
		"large lists in lists":    strings.Repeat("*60000\r\n", 1000),
		"a line without an end":   "+" + strings.Repeat("a", 8<<20),
		"an error without an end": "-" + strings.Repeat("a", 8<<20),
		"an unknown type":         "?what\r\n",
		"HTTP":                    "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n",
		"a wrong type":            ":1\r\n*0\r\n",
		"an empty line":           "\r\n",
		"nothing but a line end":  "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := fake(t, func(command []string) string {
				if command[0] == "get" {
					return reply
				}
				return "+OK\r\n"
			})
			c := newCache(t, Config{Addresses: []string{address}}, func(cfg *Config) { cfg.Timeout = 5 * time.Second })
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			image, err := c.Load(ctx, segment(1))
			if reply[0] == ':' { // an integer is taken for its text, and the rest for a fault of the connection
				return
			}
			if err == nil {
				t.Errorf("%.50q", image)
			}
			if slow, ok := errors.AsType[net.Error](err); ok && slow.Timeout() {
				t.Errorf("ended by the time limit only: %v", err)
			}
		})
	}
}

// guard passes on what an honest server sends, however it is cut into pieces.
func TestGuardPasses(t *testing.T) {
	t.Parallel()
	honest := "+OK\r\n$5\r\nab\r\nc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*2\r\n$3\r\n$9\n\r\n:7\r\n%1\r\n+a\r\n_\r\n-ERR $999999999999\r\n$1\r\n\n\r\n"
	for piece := 1; piece <= len(honest); piece++ {
		ours, theirs := net.Pipe()
		go func() {
			for rest := []byte(honest); len(rest) > 0; {
				n := min(piece, len(rest))
				if _, err := theirs.Write(rest[:n]); err != nil {
					return
				}
				rest = rest[n:]
			}
			_ = theirs.Close()
		}()
		got, err := io.ReadAll(guard(ours, 5))
		if err != nil || string(got) != honest {
			t.Fatalf("in pieces of %d: %q, %v", piece, got, err)
		}
	}
	ours, theirs := net.Pipe()
	go func() { _, _ = theirs.Write([]byte("+OK\r\n$6\r\n")) }()
	if _, err := io.ReadAll(guard(ours, 5)); !errors.Is(err, ErrReply) {
		t.Errorf("a string of 6: %v", err)
	}
	if _, err := theirs.Write([]byte("x")); err == nil {
		t.Error("the connection lives on")
	}
}

// What guard refuses by itself, whatever the client would do with it.
func TestGuardRefuses(t *testing.T) {
	t.Parallel()
	for _, hostile := range []string{
		"$101\r\n", "=101\r\n", "!101\r\n", "$9223372036854775807\r\n", "$99999999999999999999999\r\n", "*99999999999999999999999\r\n",
		"*2000000000\r\n", "%2000000000\r\n", "~2000000000\r\n", ">2000000000\r\n", "|2000000000\r\n",
		strings.Repeat("*60000\r\n", 100), strings.Repeat("*1\r\n", 1<<20), strings.Repeat("a", 8<<20), strings.Repeat("$0\r\n\r\n", 1<<20),
	} {
		g := &guarded{max: 100}
		g.left.Store(frames)
		if err := g.scan([]byte(hostile)); !errors.Is(err, ErrReply) {
			t.Errorf("%.30q: %v", hostile, err)
		}
	}
}

// Every request brings a new allowance, so a connection lives as long as it likes.
func TestGuardRenews(t *testing.T) {
	t.Parallel()
	g := &guarded{Conn: discard{}, max: 10}
	lines := bytes.Repeat([]byte("+OK\r\n"), 1000)
	for range 5000 {
		if _, err := g.Write(nil); err != nil {
			t.Fatal(err)
		}
		if err := g.scan(lines); err != nil {
			t.Fatal(err)
		}
	}
}

// discard takes writes only.
type discard struct{ net.Conn }

func (discard) Write(p []byte) (int, error) { return len(p), nil }
