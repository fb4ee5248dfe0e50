package rediscache

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"effectonce/internal/certtest"
	"effectonce/internal/proctest"
)

// round stores and loads, and fails the test when it cannot.
func round(t *testing.T, c *Cache) {
	t.Helper()
	store(t, c, 1, []byte("one"))
	if got := load(t, c, 1); string(got) != "one" {
		t.Errorf("%q", got)
	}
	if got := load(t, c, 2); got != nil {
		t.Errorf("a miss is %q", got)
	}
}

// The user of the package's documentation needs no more: another command, key or
// channel is refused.
func TestACL(t *testing.T) {
	t.Parallel()
	s := start(t, nil)
	setUser(t, s.address, "boss on >boss ~* +@all")
	setUser(t, s.address, "name on >first ~effectonce:* resetchannels -@all +get +set +unlink")
	setUser(t, s.address, "other on >first ~effectonce:* resetchannels -@all +get +set +unlink +select")
	do(t, s.address, "ACL", "SETUSER", "default", "off")

	var password atomic.Pointer[string]
	with := func(p string) { password.Store(&p) }
	with("first")
	cfg := Config{Addresses: []string{s.address}, Login: func() (string, string) { return "name", *password.Load() }}
	ours := func(c *Config) { c.Prefix, c.Pause = "effectonce:", time.Millisecond }
	c := newCache(t, cfg, ours)
	round(t, c)

	numbered := newCache(t, Config{Addresses: cfg.Addresses, Database: 3, Login: func() (string, string) { return "other", "first" }}, ours)
	store(t, numbered, 9, []byte("nine"))
	if load(t, c, 9) != nil {
		t.Error("database 0 has what database 3 was given")
	}

	foreign := newCache(t, cfg, nil)
	if err := foreign.Store(t.Context(), segment(1), []byte("one")); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("a key beside the prefix: %v", err)
	}
	for _, login := range []func() (string, string){nil, func() (string, string) { return "name", "hunter2-secret" }} {
		refused := newCache(t, Config{Addresses: cfg.Addresses, Login: login}, ours)
		if _, err := refused.Load(t.Context(), segment(1)); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("without a right password: %v", err)
		}
	}

	// The password changes: connections made from now on use the new one.
	admin := redis.NewClient(&redis.Options{Addr: s.address, Username: "boss", Password: "boss"})
	t.Cleanup(func() { _ = admin.Close() })
	if err := admin.Do(t.Context(), "ACL", "SETUSER", "name", "resetpass", ">second").Err(); err != nil {
		t.Fatal(err)
	}
	with("second")
	round(t, newCache(t, cfg, ours))
	if err := admin.ClientKillByFilter(t.Context(), "USER", "name").Err(); err != nil {
		t.Fatal(err)
	}
	round(t, c)
}

// setUser sends a line of ACL SETUSER.
func setUser(t *testing.T, address, rule string) {
	t.Helper()
	args := []any{"ACL", "SETUSER"}
	for word := range strings.FieldsSeq(rule) {
		args = append(args, word)
	}
	do(t, address, args...)
}

func TestDefaultUserPassword(t *testing.T) {
	t.Parallel()
	admin := func(address string) *redis.Options { return &redis.Options{Addr: address, Password: "first"} }
	s := start(t, admin, "--requirepass", "first")
	round(t, newCache(t, Config{Addresses: []string{s.address}, Login: func() (string, string) { return "", "first" }}, nil))
}

// TLS: the server is verified, the client shows a certificate, and nothing is
// sent to a server that is another.
func TestTLS(t *testing.T) {
	t.Parallel()
	ca, dir := certtest.NewCA(t), proctest.Dir(t, proctest.Unprivileged(t))
	cert, key := ca.Server(t, "redis.internal", "127.0.0.1").Files(t, dir)
	authority := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(authority, ca.PEM, 0o600); err != nil {
		t.Fatal(err)
	}
	if account := proctest.Unprivileged(t); account != nil {
		for _, file := range []string{cert, key, authority} {
			if err := os.Chown(file, int(account.Uid), int(account.Gid)); err != nil {
				t.Fatal(err)
			}
		}
	}
	client := ca.Client(t, "processor")
	pair, err := tls.X509KeyPair(client.Cert, client.Key)
	if err != nil {
		t.Fatal(err)
	}
	trusted := func(change func(*tls.Config)) Config {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(ca.PEM)
		secure := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool, Certificates: []tls.Certificate{pair}}
		change(secure)
		return Config{TLS: secure}
	}
	port := proctest.Ports(t, 1)[0]
	s := startAt(t, port, func(address string) *redis.Options {
		return &redis.Options{Addr: address, TLSConfig: trusted(func(*tls.Config) {}).TLS}
	}, "--port", "0", "--tls-port", strconv.Itoa(port), "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", authority)

	for name, test := range map[string]struct {
		change func(*tls.Config)
		plain  bool
		fault  string
	}{
		"by address":            {change: func(*tls.Config) {}},
		"by server name":        {change: func(c *tls.Config) { c.ServerName = "redis.internal" }},
		"another server name":   {change: func(c *tls.Config) { c.ServerName = "other.internal" }, fault: "not other.internal"},
		"an unknown authority":  {change: func(c *tls.Config) { c.RootCAs = x509.NewCertPool() }, fault: "unknown authority"},
		"no client certificate": {change: func(c *tls.Config) { c.Certificates = nil }, fault: " "}, // an alert, or a reset that overtakes it
		"plain":                 {change: func(*tls.Config) {}, plain: true, fault: " "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := trusted(test.change)
			cfg.Addresses = []string{s.address}
			if test.plain {
				cfg.TLS = nil
			}
			c := newCache(t, cfg, nil)
			if test.fault == "" {
				round(t, c)
				store(t, c, 3, random(t, 1<<20))
				load(t, c, 3)
				return
			}
			if _, err := c.Load(t.Context(), segment(1)); err == nil || !strings.Contains(err.Error(), test.fault) {
				t.Errorf("%v", err)
			}
		})
	}
}

// A master with a replica and a Sentinel: the cache follows a failover by itself.
func TestSentinel(t *testing.T) {
	t.Parallel()
	ports := proctest.Ports(t, 3)
	listen := func(i int, more ...string) *server {
		return startAt(t, ports[i], nil, append([]string{"--port", strconv.Itoa(ports[i])}, more...)...)
	}
	master := listen(0)
	replica := listen(1, "--replicaof", fmt.Sprintf("127.0.0.1 %d", ports[0]), "--repl-diskless-sync-delay", "0")
	until(t, "the replica is in step", func() bool {
		return strings.Contains(fmt.Sprint(do(t, replica.address, "INFO", "replication")), "master_link_status:up")
	})
	sentinel := startSentinel(t, ports[2], ports[0])
	until(t, "Sentinel knows the replica", func() bool {
		replicas, ok := do(t, sentinel.address, "SENTINEL", "REPLICAS", "main").([]any)
		return ok && len(replicas) == 1
	})

	c := newCache(t, Config{Addresses: []string{sentinel.address}, Sentinel: "main"}, func(cfg *Config) {
		cfg.Pause = time.Millisecond
		cfg.Timeout = 5 * time.Second
	})
	round(t, c)
	if got := do(t, master.address, "GET", c.key(segment(1), 0)); got != "one" {
		t.Errorf("the master has %v", got)
	}
	master.kill(t)
	until(t, "the cache has followed", func() bool { return c.Store(t.Context(), segment(3), []byte("three")) == nil })
	if got := do(t, replica.address, "GET", c.key(segment(3), 0)); got != "three" {
		t.Errorf("the new master has %v", got)
	}
	if got := load(t, c, 3); string(got) != "three" {
		t.Errorf("%q", got)
	}
}

// startSentinel watches a master under the name "main".
func startSentinel(t *testing.T, port, master int) *server {
	t.Helper()
	account := proctest.Unprivileged(t)
	dir := proctest.Dir(t, account)
	file := filepath.Join(dir, "sentinel.conf") // it writes there what it learns
	text := fmt.Sprintf(`port %d
bind 127.0.0.1
dir %s
sentinel monitor main 127.0.0.1 %d 1
sentinel down-after-milliseconds main 500
sentinel failover-timeout main 3000
`, port, dir, master)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if account != nil {
		if err := os.Chown(file, int(account.Uid), int(account.Gid)); err != nil {
			t.Fatal(err)
		}
	}
	s := &server{address: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))}
	s.ended = proctest.Start(t, proctest.Server{
		Args: []string{"redis-server", file, "--sentinel"}, Log: filepath.Join(t.TempDir(), "log"), Signal: "KILL", Account: account,
	})
	until(t, "Sentinel answers", func() bool {
		client := redis.NewClient(&redis.Options{Addr: s.address})
		defer func() { _ = client.Close() }()
		return client.Ping(t.Context()).Err() == nil
	})
	return s
}

// A cluster of two nodes, of which one is named, and a user who may do no more than
// the documentation says.
func TestCluster(t *testing.T) {
	t.Parallel()
	ports := proctest.Ports(t, 4) // also for the buses, which would take one that somebody else may have
	nodes := make([]*server, 2)
	for i := range nodes {
		nodes[i] = startAt(t, ports[i], nil, "--port", strconv.Itoa(ports[i]), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(ports[i+2]))
		do(t, nodes[i].address, "CLUSTER", "ADDSLOTSRANGE", 8192*i, 8192*i+8191)
	}
	do(t, nodes[0].address, "CLUSTER", "MEET", "127.0.0.1", ports[1], ports[3])
	for _, node := range nodes {
		until(t, "the cluster is well", func() bool {
			info := fmt.Sprint(do(t, node.address, "CLUSTER", "INFO"))
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, "cluster_known_nodes:2")
		})
		setUser(t, node.address, "name on >first ~effectonce:* resetchannels -@all +get +set +unlink +cluster|slots")
	}
	c := newCache(t, Config{
		Addresses: []string{nodes[0].address}, Cluster: true, Login: func() (string, string) { return "name", "first" },
	}, func(cfg *Config) { cfg.Prefix = "effectonce:" })
	round(t, c)
	for n := range byte(50) { // all over the slots
		store(t, c, n, []byte{n})
	}
	for n := range byte(50) {
		if got := load(t, c, n); len(got) != 1 || got[0] != n {
			t.Errorf("segment %d: %q", n, got)
		}
	}
	for _, node := range nodes {
		if keys, ok := do(t, node.address, "DBSIZE").(int64); !ok || keys < 5 || keys > 45 {
			t.Errorf("%s has %d of 50 images", node.address, keys)
		}
		if denied := fmt.Sprint(do(t, node.address, "ACL", "LOG")); strings.Contains(denied, "username name") {
			t.Errorf("commands were denied: %s", denied)
		}
	}
}
