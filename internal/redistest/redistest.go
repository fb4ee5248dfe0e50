// Package redistest runs a Redis of a test's own, which may be flushed, filled,
// stopped and killed.
package redistest

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"effectonce/internal/proctest"
)

// Server is a redis-server on a port of its own, and a client of it.
type Server struct {
	*redis.Client

	Address string // host:port

	tb    testing.TB
	port  int
	ended <-chan struct{}
}

// New starts a server that ends with the test.
func New(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{tb: tb, port: proctest.Ports(tb, 1)[0]}
	s.Address = net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port))
	s.Client = redis.NewClient(&redis.Options{Addr: s.Address})
	tb.Cleanup(func() { _ = s.Close() })
	s.Start()
	return s
}

// Start starts it, or starts it again after Kill. It has forgotten everything.
func (s *Server) Start() {
	s.tb.Helper()
	account, log := proctest.Unprivileged(s.tb), filepath.Join(s.tb.TempDir(), "log")
	s.tb.Cleanup(func() {
		if text, err := os.ReadFile(log); s.tb.Failed() && err == nil {
			s.tb.Logf("redis-server:\n%s", text)
		}
	})
	s.ended = proctest.Start(s.tb, proctest.Server{
		Args: []string{"redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(s.port), "--dir", proctest.Dir(s.tb, account), "--save", ""},
		Log:  log, Signal: "KILL", Account: account,
	})
	for s.Ping(s.tb.Context()).Err() != nil {
		select {
		case <-s.ended:
			s.tb.Fatal("redis-server ended at once")
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Kill ends it without a word.
func (s *Server) Kill() {
	s.tb.Helper()
	s.signal(s.pid(), syscall.SIGKILL)
	<-s.ended
}

// Freeze stops it: it accepts, and says nothing. The answer lets it go on.
func (s *Server) Freeze() (goOn func()) {
	s.tb.Helper()
	pid := s.pid()
	s.signal(pid, syscall.SIGSTOP)
	return func() { s.signal(pid, syscall.SIGCONT) }
}

// Change replaces the values of all keys under the prefix.
func (s *Server) Change(prefix string, with func(value string) string) {
	s.tb.Helper()
	for _, key := range s.Under(prefix) {
		if err := s.Set(s.tb.Context(), key, with(s.Get(s.tb.Context(), key).Val()), time.Minute).Err(); err != nil {
			s.tb.Fatal(err)
		}
	}
}

// Evict fills it until it throws out all keys under the prefix, with an error to
// nobody.
func (s *Server) Evict(prefix string) {
	s.tb.Helper()
	ctx := s.tb.Context()
	for name, value := range map[string]string{"maxmemory-policy": "allkeys-lru", "maxmemory": "4mb"} {
		if err := s.ConfigSet(ctx, name, value).Err(); err != nil {
			s.tb.Fatal(err)
		}
	}
	for n := 0; len(s.Under(prefix)) > 0; n++ {
		if n > 10_000 {
			s.tb.Fatal("nothing is evicted")
		}
		if err := s.Set(ctx, fmt.Sprintf("others:%d", n), strings.Repeat("x", 10_000), time.Minute).Err(); err != nil {
			s.tb.Fatal(err)
		}
	}
}

// Under lists the keys that begin with the prefix.
func (s *Server) Under(prefix string) []string {
	s.tb.Helper()
	keys, err := s.Keys(s.tb.Context(), prefix+"*").Result()
	if err != nil {
		s.tb.Fatal(err)
	}
	return keys
}

func (s *Server) pid() int {
	s.tb.Helper()
	for line := range strings.Lines(s.Info(s.tb.Context(), "server").Val()) {
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "process_id:"); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				s.tb.Fatal(err)
			}
			return n
		}
	}
	s.tb.Fatal("redis-server does not say which process it is")
	return 0
}

func (s *Server) signal(pid int, signal syscall.Signal) {
	if err := syscall.Kill(pid, signal); err != nil {
		s.tb.Fatalf("redis-server: %v", err)
	}
}
