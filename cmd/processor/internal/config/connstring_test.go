package config

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Nobody who forgot sslmode talks to a distant database in the clear, or to
// somebody else.
func TestVerifyFullIsTheDefaultForDistantHosts(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	t.Setenv("PGHOST", "")
	t.Setenv("PGSERVICE", "")
	for _, c := range []struct {
		name     string
		postgres Postgres
		verify   bool
	}{
		{"url", Postgres{DSN: NewDSN("postgres://u@db.example/d")}, true},
		{"url with a query", Postgres{DSN: NewDSN("postgres://u@db.example/d?application_name=x")}, true},
		{"keywords", Postgres{DSN: NewDSN("host=db.example user=u")}, true},
		{"address", Postgres{DSN: NewDSN("postgres://u@10.0.0.1/d")}, true},
		{"one of two", Postgres{DSN: NewDSN("host=127.0.0.1,db.example user=u")}, true},
		{"one of two in a url", Postgres{DSN: NewDSN("postgres://u@127.0.0.1,db.example/d")}, true},
		{"a name that begins like loopback", Postgres{DSN: NewDSN("host=localhost.evil.example")}, true},
		{"parts", Postgres{Host: "db.example", Database: "d", User: "u"}, true},
		{"mentioned inside the password", Postgres{DSN: NewDSN("host=db.example password='sslmode=disable'")}, true},
		{"parts, mode named", Postgres{Host: "db.example", Database: "d", User: "u", SSLMode: "disable"}, false},
		{"url, mode named", Postgres{DSN: NewDSN("postgres://u@db.example/d?sslmode=disable")}, false},
		{"keywords, mode named", Postgres{DSN: NewDSN("host=db.example sslmode = disable")}, false},
		{"localhost", Postgres{DSN: NewDSN("postgres://u@localhost/d")}, false},
		{"127.1.2.3", Postgres{DSN: NewDSN("postgres://u@127.1.2.3/d")}, false},
		{"::1", Postgres{DSN: NewDSN("postgres://u@[::1]/d")}, false},
		{"socket", Postgres{DSN: NewDSN("host=/var/run/postgresql")}, false},
		{"no host", Postgres{DSN: NewDSN("user=u")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dsn, err := c.postgres.ConnString()
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := pgconn.ParseConfig(dsn.Reveal())
			if err != nil {
				t.Fatal(err)
			}
			verifies := parsed.TLSConfig != nil && !parsed.TLSConfig.InsecureSkipVerify && parsed.TLSConfig.ServerName != ""
			for _, f := range parsed.Fallbacks {
				verifies = verifies && f.TLSConfig != nil && !f.TLSConfig.InsecureSkipVerify
			}
			if verifies != c.verify {
				t.Errorf("%s verifies the server: %t, want %t", dsn, verifies, c.verify)
			}
		})
	}
}

func TestTheEnvironmentMayNameTheMode(t *testing.T) {
	t.Setenv("PGSSLMODE", "require")
	dsn, err := Postgres{DSN: NewDSN("postgres://u@db.example/d")}.ConnString()
	if err != nil || strings.Contains(dsn.Reveal(), "sslmode") {
		t.Errorf("got %s, %v", dsn, err)
	}
}

// Parts reach the driver as they are, whatever characters they hold.
func TestPartsBecomeOneString(t *testing.T) {
	const odd = `a'b\c d=e`
	dsn, err := Postgres{Host: "127.0.0.1", Port: 6543, Database: odd, User: odd, Password: NewSecret(odd)}.ConnString()
	if err != nil {
		t.Fatal(err)
	}
	got, err := pgconn.ParseConfig(dsn.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if got.Host != "127.0.0.1" || got.Port != 6543 || got.Database != odd || got.User != odd || got.Password != odd {
		t.Errorf("got %s:%d %q %q %q", got.Host, got.Port, got.Database, got.User, got.Password)
	}
	if strings.Contains(dsn.String(), "password='a") {
		t.Error("the password is printed")
	}
}

// What the driver says about a bad string quotes it; what we say does not.
func TestBadConnectionStringsAreNotQuoted(t *testing.T) {
	for _, bad := range []string{
		"postgres://u:hunter2@h:port/d", "postgres://u:hun ter2@h:hunter2/d", "host=h password='hunter2", "hunter2", "postgres://u:%zzhunter2@h/d",
		"postgres://u:hunter2@h/d?sslmode=hunter2", "host=h connect_timeout=hunter2", "host=h sslrootcert=/nowhere/ca.pem sslmode=verify-ca password=hunter2",
		"host=h service=hunter2", "host=h port=hunter2", "postgres://u:hunter2@h/d?target_session_attrs=hunter2",
	} {
		_, err := Postgres{DSN: NewDSN(bad)}.ConnString()
		if err == nil || leaks(err.Error()) {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}
