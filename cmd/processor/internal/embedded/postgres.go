package embedded

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Names of the verbs that the binary gives to the keepers.
const (
	PostgresVerb = "demo-postgres"
	KafkaVerb    = "demo-kafka"
)

// Postgres is a private server on the loopback interface. Its data is durable
// while it lives (fsync is on) and is thrown away with its directory.
type Postgres struct {
	*Child

	Version string
	Source  string // where its programs come from, for people
	Account string // name of the account it runs under, empty for our own
	Port    int

	password string
	log      string
	pidFile  string
}

// database is where everything of the demo lives.
const database = "effectonce"

// postgresOrders and postgresAnswer are what the keeper and we tell each other.
type postgresOrders struct {
	Dir      string `json:"dir"`      // owned by the keeper's account
	Password string `json:"password"` // of the superuser postgres
	Fetch    bool   `json:"fetch"`    // do not look for a local installation
}

type postgresAnswer struct {
	Port    int    `json:"port"`
	Version string `json:"version"`
	Source  string `json:"source"`
}

// StartPostgres starts a private Postgres below dir, which TempDir made, through
// the keeper verb of the binary at path. With fetch it ignores what is installed.
func StartPostgres(ctx context.Context, path, dir string, fetch bool) (*Postgres, error) {
	p := &Postgres{password: rand.Text()}
	home := filepath.Join(dir, "postgres")
	p.log, p.pidFile = filepath.Join(home, "log", serverLog), filepath.Join(home, "data", "postmaster.pid")
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o700); err != nil {
		return nil, fmt.Errorf("directory of Postgres: %w", err)
	}
	account := unprivileged()
	if account != nil {
		p.Account = account.Name
		var err error
		if path, err = handOver(path, home, account); err != nil {
			return nil, err
		}
	}
	var err error
	p.Child, err = Start(Spec{
		Name: "Postgres", Path: path, Args: []string{PostgresVerb}, Env: keeperEnv(home, account), Dir: home,
		Log: filepath.Join(dir, "postgres.log"), Orders: postgresOrders{Dir: home, Password: p.password, Fetch: fetch},
		Answers: true, Account: account, Orphaned: syscall.SIGTERM,
	})
	if err != nil {
		return nil, err
	}
	var a postgresAnswer
	if err := p.Answer(ctx, &a); err != nil {
		return nil, errors.Join(err, p.Stop())
	}
	p.Port, p.Version, p.Source = a.Port, a.Version, a.Source
	return p, nil
}

// handOver copies the binary to a place where the account can run it (that of `go
// run` lies in a directory nobody else may enter) and gives the account the
// directory.
func handOver(path, home string, account *Account) (string, error) {
	src, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("own binary: %w", err)
	}
	defer func() { _ = src.Close() }()
	copied := filepath.Join(home, "keeper")
	dst, err := os.OpenFile(copied, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755) //nolint:gosec // the account has to run it
	if err != nil {
		return "", fmt.Errorf("copy of own binary: %w", err)
	}
	_, err = io.Copy(dst, src)
	if err := errors.Join(err, dst.Close()); err != nil {
		return "", fmt.Errorf("copy of own binary: %w", err)
	}
	for _, d := range []string{filepath.Join(home, "tmp"), home} {
		if err := os.Chown(d, int(account.UID), int(account.GID)); err != nil {
			return "", fmt.Errorf("directory for account %s: %w", account.Name, err)
		}
	}
	return copied, nil
}

// keeperEnv is our environment without what would change how Postgres and its
// clients behave. Another account finds its home in its own directory.
func keeperEnv(home string, account *Account) []string {
	var env []string
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); !strings.HasPrefix(name, "PG") && name != "TMPDIR" {
			env = append(env, kv)
		}
	}
	env = append(env, "TMPDIR="+filepath.Join(home, "tmp"), "LC_ALL=C")
	if account != nil {
		env = append(env, "HOME="+home, "XDG_CACHE_HOME="+filepath.Join(home, "cache"))
	}
	return env
}

// DSN is the connection string for a role of the server; an empty role is the
// superuser.
func (p *Postgres) DSN(role, password string) string {
	if role == "" {
		role, password = "postgres", p.password
	}
	u := url.URL{Scheme: "postgres", User: url.UserPassword(role, password), Host: fmt.Sprintf("127.0.0.1:%d", p.Port),
		Path: "/" + database, RawQuery: "sslmode=disable"}
	return u.String()
}

// Tail is the end of the server's own log, or of the keeper's before there is one.
func (p *Postgres) Tail() string {
	if text := Tail(p.log); text != "" {
		return text
	}
	return p.Child.Tail()
}

// Stop stops the server and its keeper.
func (p *Postgres) Stop() error {
	const grace = 20 * time.Second
	return p.Child.Stop(grace)
}
