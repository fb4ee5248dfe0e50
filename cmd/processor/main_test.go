//go:build !windows

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
)

// asProcessor makes the test binary the program itself.
const asProcessor = "EFFECTONCE_AS_PROCESSOR"

func TestMain(m *testing.M) {
	if os.Getenv(asProcessor) != "" {
		os.Exit(execute(os.Args[1:]))
	}
	os.Exit(m.Run())
}

const canary = "hunter2"

// processor runs the program as a process, since what it logs goes past cobra.
func processor(t *testing.T, env []string, args ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Env = append(append(os.Environ(), asProcessor+"=1"), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	// A dependency that is down is waited for; it was said once, that is enough.
	out := &watch{phrase: "trying again", seen: cancel}
	cmd.Stdout, cmd.Stderr = out, out
	err = cmd.Run()
	var failed *exec.ExitError
	if err != nil && !errors.As(err, &failed) && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.text.String()
}

// watch keeps what a process writes and calls seen when it wrote a phrase.
type watch struct {
	text   bytes.Buffer
	phrase string
	seen   func()
}

func (w *watch) Write(p []byte) (int, error) {
	n, err := w.text.Write(p)
	if strings.Contains(w.text.String(), w.phrase) {
		w.seen()
	}
	return n, err
}

// Passwords were printed with merged configurations, in warnings about unknown
// settings, and in the errors of failed logins. A marked password stands in
// every place a configuration has for one, every verb runs, well and badly,
// and no output holds the mark.
func TestNoVerbShowsASecret(t *testing.T) {
	db := pgtest.New(t)
	db.Table(t, "orders", "order_id text PRIMARY KEY")
	broker := kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(canary+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, server, _ := strings.Cut(pgtest.DSN(t), "@")
	server, _, _ = strings.Cut(server, "/")
	host, port, _ := strings.Cut(server, ":")

	const sasl = "sasl: {mechanism: SCRAM-SHA-256, username: u, password: hunter2}"
	for name, c := range map[string]struct {
		kafka, postgres, key string
		code                 int // of validate
	}{
		"refused login, url":        {"", "dsn: 'postgres://effectonce_test_nobody:hunter2@" + server + "/postgres?sslmode=disable'", "order_id", 78},
		"refused login, keywords":   {"", fmt.Sprintf("dsn: host=%s port=%s user=effectonce_test_nobody password=hunter2 dbname=postgres", host, port), "order_id", 78},
		"refused login, parts":      {"", fmt.Sprintf("host: %s, port: %s, user: effectonce_test_nobody, password: hunter2, database: postgres", host, port), "order_id", 78},
		"password from a file":      {"", "dsn: 'postgres://effectonce_test_nobody:${file:" + secret + "}@" + server + "/postgres?sslmode=disable'", "order_id", 78},
		"unreachable":               {"", "dsn: 'postgres://u:hunter2@127.0.0.1:1/d'", "order_id", 69},
		"no TLS there":              {"", "dsn: 'postgres://u:hunter2@" + server + "/d?sslmode=require'", "order_id", 69},
		"bad url":                   {"", "dsn: 'postgres://u:hun ter2@h:hunter2/d'", "order_id", 78},
		"bad keywords":              {"", "dsn: \"host=h password='hunter2\"", "order_id", 78},
		"bad mode":                  {"", "dsn: 'postgres://u:hunter2@h/d?sslmode=hunter2'", "order_id", 78},
		"misspelt password":         {"", "host: h, database: d, user: u, pasword: hunter2", "order_id", 78},
		"password of wrong type":    {"", "host: h, database: d, user: u, password: [hunter2]", "order_id", 78},
		"refused login to Kafka":    {sasl, "dsn: 'postgres://u:hunter2@127.0.0.1:1/d'", "order_id", -1},
		"plain without TLS":         {strings.Replace(sasl, "SCRAM-SHA-256", "PLAIN", 1), "dsn: 'postgres://u:hunter2@h/d'", "order_id", 78},
		"misspelt SASL password":    {strings.Replace(sasl, "password", "pasword", 1), "dsn: 'postgres://u:hunter2@h/d'", "order_id", 78},
		"OAuth":                     {"sasl: {mechanism: OAUTHBEARER, token_url: 'http://127.0.0.1:1/t', client_id: u, client_secret: hunter2, allow_plaintext: true}", "dsn: 'postgres://u:hunter2@127.0.0.1:1/d'", "order_id", -1},
		"secret in the wrong place": {"", "host: h, database: d, user: u, password: x", "'kafka:${file:" + secret + "}'", 78},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "orders.yaml")
			text := fmt.Sprintf("pipeline: orders\nkafka:\n  brokers: [%q]\n  topics: [orders]\n  %s\npostgres: {%s, schema: %s}\nkey: %s\n"+
				"sink: {table: {schema: %s, name: orders, columns: {order_id: order_id}}}\nlog: {level: trace, format: json}\nadmin: {listen: '127.0.0.1:%s'}\n",
				broker, c.kafka, quoteFlow(c.postgres), db.Schema, c.key, db.User, freePort(t))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, out := processor(t, nil, "validate", file)
			if c.code >= 0 && code != c.code {
				t.Errorf("validate: exit code %d, want %d\n%s", code, c.code, out)
			}
			for _, args := range [][]string{
				{"validate", file}, {"validate", file, "-o", "json"}, {"validate", file, "--offline"}, {"validate", file, "--ofline"},
				{"validate", file, "--set", "kafka.sasl.pasword=hunter2"}, {"validate", file, "--set", "hunter2"},
				{"config", "print", file}, {"config", "print", file, "-o", "json"},
				{"config", "print", file, "--set", "postgres.password=hunter2"},
				{"migrate", "status", file}, {"migrate", "up", file}, {"migrate", "down", file}, {"migrate", "sql", file},
				{"run", file}, {"run", file, "--set", "hunter2"},
			} {
				if _, out := processor(t, nil, args...); strings.Contains(out, canary) {
					t.Errorf("%v shows the secret:\n%s", args, out)
				}
			}
			env := []string{"EFFECTONCE_KAFKA__SASL__PASWORD=hunter2", "EFFECTONCE_POSTGRES__PASSWORD=hunter2"}
			if _, out := processor(t, env, "config", "print", file); strings.Contains(out, canary) {
				t.Errorf("the environment's secret is shown:\n%s", out)
			}
		})
	}
}

// freePort is one that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// quoteFlow keeps a DSN whole inside { }.
func quoteFlow(postgres string) string {
	if rest, ok := strings.CutPrefix(postgres, "dsn: host="); ok {
		return "dsn: 'host=" + rest + "'"
	}
	return postgres
}
