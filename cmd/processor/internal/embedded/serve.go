package embedded

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// serverLog is the name of the log that the server writes by itself.
const serverLog = "server.log"

// ServePostgres is the keeper's verb: it reads its orders, starts Postgres,
// answers, and stops it when the input or the context ends.
func ServePostgres(ctx context.Context, stdin io.Reader, stdout, stderr io.Writer) error {
	var orders postgresOrders
	ctx, cancel, err := Receive(ctx, stdin, &orders)
	if err != nil {
		return err
	}
	defer cancel()

	cfg, answer, err := configure(ctx, orders)
	if err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(cfg.Logger(stderr))
	if err := server.Start(); err != nil {
		return fmt.Errorf("start Postgres (%s): %w", answer.Source, err)
	}
	if ctx.Err() == nil {
		err = json.NewEncoder(stdout).Encode(answer)
	}
	if err == nil {
		<-ctx.Done()
	}
	return errors.Join(err, server.Stop())
}

// configure decides which Postgres runs, and how.
func configure(ctx context.Context, orders postgresOrders) (embeddedpostgres.Config, postgresAnswer, error) {
	port, err := FreePort(ctx)
	if err != nil {
		return embeddedpostgres.Config{}, postgresAnswer{}, err
	}
	cfg := embeddedpostgres.DefaultConfig().
		Port(uint32(port)).
		Username("postgres").Password(orders.Password).Database(database).
		Locale("C").Encoding("UTF8").StartTimeout(time.Minute).
		RuntimePath(filepath.Join(orders.Dir, "runtime")).DataPath(filepath.Join(orders.Dir, "data")).
		StartParameters(map[string]string{
			"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "on",
			"shared_buffers": "256MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min",
			"logging_collector": "on", "log_directory": filepath.Join(orders.Dir, "log"), "log_filename": serverLog,
		})
	answer := postgresAnswer{Port: port}
	if found, ok := installed(ctx); ok && !orders.Fetch {
		answer.Version, answer.Source = found.version, filepath.Join(found.root, "bin")
		return cfg.BinariesPath(found.root), answer, nil
	}
	answer.Version, answer.Source = string(embeddedpostgres.V18), "fetched from Maven Central"
	return cfg.Version(embeddedpostgres.V18).CachePath(cacheDir(orders.Dir)), answer, nil
}

// cacheDir is where a fetched archive stays for the next time: in the user's cache,
// or in dir, with everything else, if the user has none.
func cacheDir(dir string) string {
	if cache, err := os.UserCacheDir(); err == nil {
		cache = filepath.Join(cache, "effectonce", "postgres")
		if os.MkdirAll(cache, 0o700) == nil {
			return cache
		}
	}
	return filepath.Join(dir, "cache")
}

// FreePort returns a port that nobody listens on at the moment.
func FreePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("free port: %w", err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil //nolint:forcetypeassert // a TCP listener has a TCP address
}

// Receive is how a child begins: it reads its orders, the first line of its input,
// and returns a context that ends with the input too. That is how a child learns
// that its parent is gone. A read cannot be taken back, so one goroutine stays on
// the input for as long as the process lives.
func Receive(ctx context.Context, stdin io.Reader, orders any) (context.Context, context.CancelFunc, error) {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, orders)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("orders on standard input (this verb is started by the demo): %w", err)
	}
	ctx, cancel := UntilEOF(ctx, in)
	return ctx, cancel, nil
}

// UntilEOF returns a context that ends with the input, for a child without orders.
func UntilEOF(ctx context.Context, stdin io.Reader) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx, cancel
}
