package rediscache

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"effectonce/internal/proctest"
	"effectonce/pkg/stream"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // it tells of servers that the tests killed
	goleak.VerifyTestMain(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// patience bounds what a test waits for; it times nothing.
const patience = 30 * time.Second

// shared is the server that scripts/services keeps up.
func shared(tb testing.TB) string {
	tb.Helper()
	const name = "EFFECTONCE_TEST_REDIS"
	if address := os.Getenv(name); address != "" {
		return address
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "..", ".services", "env"))
	if err != nil {
		tb.Fatalf("no Redis to test with: run scripts/services up, or set %s (%v)", name, err)
	}
	for line := range strings.Lines(string(text)) {
		if address, ok := strings.CutPrefix(strings.TrimSpace(line), "export "+name+"="); ok {
			return address
		}
	}
	tb.Fatalf(".services/env has no %s: run scripts/services up", name)
	return ""
}

// newCache makes a cache with a prefix of the test's own, and time enough for a
// machine that is busy with other tests. change may be nil.
func newCache(tb testing.TB, cfg Config, change func(*Config)) *Cache {
	tb.Helper()
	cfg.Prefix = "test:" + hex.EncodeToString(random(tb, 8)) + ":"
	cfg.TTL = time.Minute // what a killed test leaves behind
	cfg.Timeout = patience
	if change != nil {
		change(&cfg)
	}
	c, err := New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := c.Close(); err != nil {
			tb.Error(err)
		}
	})
	return c
}

func random(tb testing.TB, n int) []byte {
	tb.Helper()
	b := make([]byte, n)
	if _, err := rand.Read(b); err != nil {
		tb.Fatal(err)
	}
	return b
}

func segment(n byte) stream.UUID { return stream.UUID{15: n} }

// store and load are calls that must succeed.
func store(tb testing.TB, c *Cache, n byte, image []byte) {
	tb.Helper()
	if err := c.Store(tb.Context(), segment(n), image); err != nil {
		tb.Fatal(err)
	}
}

func load(tb testing.TB, c *Cache, n byte) []byte {
	tb.Helper()
	image, err := c.Load(tb.Context(), segment(n))
	if err != nil {
		tb.Fatal(err)
	}
	return image
}

// server is a Redis of the test's own.
type server struct {
	address string
	ended   <-chan struct{}
}

// start runs redis-server with these arguments beside a port and a directory, and
// waits until it answers.
func start(tb testing.TB, admin func(address string) *redis.Options, args ...string) *server {
	tb.Helper()
	port := proctest.Ports(tb, 1)[0]
	return startAt(tb, port, admin, append([]string{"--port", strconv.Itoa(port)}, args...)...)
}

func startAt(tb testing.TB, port int, admin func(address string) *redis.Options, args ...string) *server {
	tb.Helper()
	account := proctest.Unprivileged(tb)
	dir := proctest.Dir(tb, account)
	s := &server{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	s.ended = proctest.Start(tb, proctest.Server{
		Args: append([]string{"redis-server", "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--daemonize", "no"}, args...),
		Log:  filepath.Join(tb.TempDir(), "log"), Signal: "KILL", Account: account,
	})
	options := &redis.Options{Addr: s.address}
	if admin != nil {
		options = admin(s.address)
	}
	client := redis.NewClient(options)
	tb.Cleanup(func() { _ = client.Close() })
	until(tb, "redis-server answers", func() bool {
		select {
		case <-s.ended:
			tb.Fatal("redis-server ended at once")
		default:
		}
		return client.Ping(tb.Context()).Err() == nil
	})
	return s
}

// do sends a command to a server and returns what it answered.
func do(tb testing.TB, address string, args ...any) any {
	tb.Helper()
	client := redis.NewClient(&redis.Options{Addr: address, MaxRetries: -1})
	defer func() { _ = client.Close() }()
	answer, err := client.Do(tb.Context(), args...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		tb.Fatalf("%v: %v", args, err)
	}
	return answer
}

// kill ends the server without a word, and returns when it is gone.
func (s *server) kill(tb testing.TB) {
	tb.Helper()
	for line := range strings.Lines(fmt.Sprint(do(tb, s.address, "INFO", "server"))) {
		if pid, ok := strings.CutPrefix(strings.TrimSpace(line), "process_id:"); ok {
			n, err := strconv.Atoi(pid)
			if err != nil {
				tb.Fatal(err)
			}
			if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
				tb.Fatal(err)
			}
		}
	}
	<-s.ended
}

// until asks again and again for what another process will do.
func until(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(patience); !done(); <-tick.C {
		if time.Now().After(deadline) {
			tb.Fatalf("%s: not within %s", what, patience)
		}
	}
}

// fake is a server that answers each command with what reply returns, byte for
// byte. An empty reply hangs until the test ends; handshakes are refused, which
// clients take for an old Redis.
func fake(tb testing.TB, reply func(command []string) string) string {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	done := make(chan struct{})
	tb.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	go func() {
		defer close(done)
		var conns []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				for _, c := range conns {
					_ = c.Close()
				}
				return
			}
			conns = append(conns, conn)
			go serve(conn, reply)
		}
	}()
	return listener.Addr().String()
}

// serve answers on one connection until it ends.
func serve(conn net.Conn, reply func(command []string) string) {
	defer func() { _ = conn.Close() }()
	for in := bufio.NewReader(conn); ; {
		command, err := readCommand(in)
		if err != nil {
			return
		}
		answer := "-ERR unknown command\r\n"
		if command[0] != "hello" {
			answer = reply(command)
		}
		if _, err := conn.Write([]byte(answer)); err != nil {
			return
		}
	}
}

// readCommand reads a list of strings.
func readCommand(in *bufio.Reader) ([]string, error) {
	number := func() (int, error) {
		line, err := in.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line)[1:])
	}
	n, err := number()
	if err != nil {
		return nil, err
	}
	command := make([]string, n)
	for i := range command {
		size, err := number()
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		command[i] = strings.ToLower(string(b[:size]))
	}
	return command, nil
}
