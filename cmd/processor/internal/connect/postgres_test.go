package connect_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/internal/certtest"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/internal/proctest"
)

// server is a private Postgres that takes TLS only. Its certificate is for
// localhost, not for 127.0.0.1.
type server struct {
	port int
	ca   string // file of the authority that signed its certificate
	auth *certtest.CA
}

// Everyone logs in by password but carol, who shows a certificate.
const clientAuthentication = `
hostssl all carol 127.0.0.1/32 cert
hostssl all all   127.0.0.1/32 scram-sha-256
`

func startPostgres(t *testing.T) *server {
	t.Helper()
	account := proctest.Unprivileged(t)
	dir := proctest.Dir(t, account)
	s := &server{port: proctest.Ports(t, 1)[0], auth: certtest.NewCA(t)}
	s.ca = s.auth.File(t)
	put := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		own(t, path, account)
		return path
	}
	pair := s.auth.Server(t, "localhost")
	data := filepath.Join(dir, "data")
	initdb := exec.CommandContext(t.Context(), filepath.Join(binaries(t), "initdb"), "--no-sync", "-D", data, "-U", "postgres",
		"-E", "UTF8", "-A", "scram-sha-256", "--pwfile", put("password", []byte(canary)))
	initdb.SysProcAttr = &syscall.SysProcAttr{Credential: account}
	initdb.Dir = dir
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, out)
	}
	args := []string{filepath.Join(binaries(t), "postgres"), "-D", data}
	for name, value := range map[string]string{
		"port": strconv.Itoa(s.port), "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off",
		"ssl": "on", "ssl_cert_file": put("server.pem", pair.Cert), "ssl_key_file": put("server.key", pair.Key),
		"ssl_ca_file": put("ca.pem", s.auth.PEM), "hba_file": put("hba.conf", []byte(clientAuthentication)),
	} {
		args = append(args, "-c", name+"="+value)
	}
	log := filepath.Join(t.TempDir(), "postgres.log")
	ended := proctest.Start(t, proctest.Server{Args: args, Log: log, Signal: "INT", Account: account})
	s.await(t, log, ended)
	return s
}

// binaries is the directory of initdb and postgres.
func binaries(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("EFFECTONCE_TEST_POSTGRES_BIN"); dir != "" {
		return dir
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil || len(found) == 0 {
		t.Fatal("no PostgreSQL server here: set EFFECTONCE_TEST_POSTGRES_BIN to the directory of initdb")
	}
	return found[len(found)-1]
}

func own(t *testing.T, path string, account *syscall.Credential) {
	t.Helper()
	if account == nil {
		return
	}
	if err := os.Chown(path, int(account.Uid), int(account.Gid)); err != nil {
		t.Fatal(err)
	}
}

// await returns when the server lets its administrator in.
func (s *server) await(t *testing.T, log string, ended <-chan struct{}) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.admin().Reveal())
		if err == nil {
			_ = conn.Close(ctx) // nothing is left to lose
			return
		}
		select {
		case <-again.C:
			continue
		case <-ended:
		case <-ctx.Done():
		}
		text, _ := os.ReadFile(log) // what there is of it
		t.Fatalf("private Postgres did not start: %v\n%s", err, text)
	}
}

func (s *server) admin() config.DSN {
	return config.NewDSN(fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres user=postgres password=%s sslmode=require", s.port, canary))
}

// parts is the configuration of the administrator over verified TLS.
func (s *server) parts() config.Postgres {
	return config.Postgres{
		Host: "localhost", Port: s.port, Database: "postgres", User: "postgres", Password: config.NewSecret(canary),
		SSLMode: "verify-full", SSLRootCert: s.ca,
	}
}

func pool(t *testing.T, cfg config.Postgres) *pgxpool.Config {
	t.Helper()
	p, err := connect.Postgres(cfg, "orders")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func reach(t *testing.T, cfg config.Postgres) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return connect.CheckPostgres(ctx, pool(t, cfg))
}

func TestPostgresTLS(t *testing.T) {
	s := startPostgres(t)
	address := net.JoinHostPort("localhost", strconv.Itoa(s.port))
	if err := reach(t, s.parts()); err != nil {
		t.Error(err)
	}
	if err := reach(t, config.Postgres{DSN: s.admin()}); err != nil {
		t.Error(err)
	}

	cfg := s.parts()
	cfg.SSLRootCert = certtest.NewCA(t).File(t)
	refused(t, reach(t, cfg), address, "unknown authority")

	cfg = s.parts()
	cfg.Host = "127.0.0.1"
	refused(t, reach(t, cfg), "127.0.0.1", "doesn't contain any IP SANs")

	cfg = s.parts()
	cfg.Password = config.NewSecret(canary + "!")
	err := reach(t, cfg)
	refused(t, err, address, "password authentication failed")
	if pgtx.Code(err) != "28P01" {
		t.Errorf("SQLSTATE %q, want 28P01", pgtx.Code(err))
	}

	cfg = s.parts()
	cfg.SSLMode, cfg.SSLRootCert = "disable", ""
	refused(t, reach(t, cfg), address, "no encryption")

	t.Run("client certificate", func(t *testing.T) { testPostgresCertificate(t, s) })
	t.Run("hosts", func(t *testing.T) { testHosts(t, s) })
}

func testPostgresCertificate(t *testing.T, s *server) {
	exec1(t, pool(t, s.parts()), "CREATE ROLE carol LOGIN")
	dir := t.TempDir()
	cfg := s.parts()
	cfg.User, cfg.Password = "carol", config.Secret{}
	cfg.SSLCert, cfg.SSLKey = s.auth.Client(t, "carol").Files(t, dir)
	if err := reach(t, cfg); err != nil {
		t.Error(err)
	}
	made := pool(t, cfg) // before the rotation
	s.auth.Client(t, "mallory").Files(t, dir)
	refused(t, connect.CheckPostgres(t.Context(), made), "localhost", "certificate authentication failed")
	cfg.SSLCert, cfg.SSLKey = "", ""
	refused(t, reach(t, cfg), "localhost", "certificate")
}

// A server that takes no writes is passed over when several are named (a standby
// that was the primary a moment ago).
func testHosts(t *testing.T, s *server) {
	writable, err := pgx.ParseConfig(pgtest.DSN(t))
	if err != nil {
		t.Fatal(err)
	}
	dsn := fmt.Sprintf("postgres://%s:%s@127.0.0.1:%d,%s:%d/%s?sslmode=prefer", writable.User, canary, s.port, writable.Host, writable.Port, writable.Database)
	exec1(t, pool(t, s.parts()), "ALTER SYSTEM SET default_transaction_read_only = on")
	exec1(t, pool(t, s.parts()), "SELECT pg_reload_conf()")
	awaitReadOnly(t, s)
	conn, err := pgx.ConnectConfig(t.Context(), pool(t, config.Postgres{DSN: config.NewDSN(dsn)}).ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }() // nothing is left to lose
	var port uint16
	if err := conn.QueryRow(t.Context(), "SELECT inet_server_port()").Scan(&port); err != nil || port != writable.Port {
		t.Errorf("connected to port %d (%v), want %d", port, err, writable.Port)
	}
}

// awaitReadOnly returns when new sessions are read-only.
func awaitReadOnly(t *testing.T, s *server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for setting := ""; setting != "on"; {
		conn, err := pgx.ConnectConfig(ctx, pool(t, s.parts()).ConnConfig)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.QueryRow(ctx, "SHOW transaction_read_only").Scan(&setting); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close(ctx) // nothing is left to lose
	}
}

func exec1(t *testing.T, cfg *pgxpool.Config, sql string) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), cfg.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }() // nothing is left to lose
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}

// Behind a pooler in transaction mode a named statement is somebody else's.
func TestSessionsHaveNoState(t *testing.T) {
	cfg := pool(t, config.Postgres{DSN: config.NewDSN(pgtest.DSN(t))})
	p, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	conn, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	for range 3 {
		var named int
		var application string
		err := conn.QueryRow(t.Context(), "SELECT count(*), current_setting('application_name') FROM pg_prepared_statements WHERE name <> $1", "").
			Scan(&named, &application)
		if err != nil || named != 0 {
			t.Errorf("%d named statements, %v", named, err)
		}
		if !strings.HasPrefix(application, "effectonce:orders:") || !strings.HasSuffix(application, fmt.Sprintf(":%d", os.Getpid())) {
			t.Errorf("application_name is %q", application)
		}
	}
}

func TestApplicationNameFits(t *testing.T) {
	long := strings.Repeat("p", 63)
	cfg, err := connect.Postgres(config.Postgres{DSN: config.NewDSN("postgres://u@127.0.0.1/db")}, long)
	if err != nil {
		t.Fatal(err)
	}
	name := cfg.ConnConfig.RuntimeParams["application_name"]
	if len(name) != 63 || !strings.HasPrefix(name, "effectonce:ppp") || !strings.HasSuffix(name, fmt.Sprintf(":%d", os.Getpid())) {
		t.Errorf("application_name is %q, %d bytes", name, len(name))
	}
}

// A host that is not loopback is verified unless the configuration says otherwise.
func TestVerifiedByDefault(t *testing.T) {
	c := pool(t, config.Postgres{DSN: config.NewDSN("postgres://u@db.example.com/db")}).ConnConfig
	if c.TLSConfig == nil || c.TLSConfig.ServerName != "db.example.com" || c.TLSConfig.InsecureSkipVerify {
		t.Errorf("TLS to a remote host: %+v", c.TLSConfig)
	}
	for _, f := range c.Fallbacks {
		if f.TLSConfig == nil || f.TLSConfig.InsecureSkipVerify {
			t.Error("falls back to a connection that is not verified")
		}
	}
	if c.ValidateConnect != nil {
		t.Error("one host is asked whether it takes writes")
	}
	c = pool(t, config.Postgres{DSN: config.NewDSN("postgres://u@a.example,b.example/db")}).ConnConfig
	if c.ValidateConnect == nil {
		t.Error("several hosts are not asked which takes writes")
	}
}

func TestUnreachablePostgres(t *testing.T) {
	port := strconv.Itoa(proctest.Ports(t, 1)[0])
	err := reach(t, config.Postgres{DSN: config.NewDSN("postgres://u:" + canary + "@127.0.0.1:" + port + "/db")})
	refused(t, err, "127.0.0.1:"+port, "refused")
}

// What cannot be read is not quoted: the secret may be in it.
func TestUnreadableDSN(t *testing.T) {
	for _, dsn := range []string{
		"postgres://u:" + canary + "@h/db?pool_max_conns=" + canary, "postgres://u:" + canary + "@h:port/db", "password='" + canary, "postgres://u@h/db?connect_timeout=" + canary,
	} {
		_, err := connect.Postgres(config.Postgres{DSN: config.NewDSN(dsn)}, "orders")
		refused(t, err, "postgres", "")
	}
}
