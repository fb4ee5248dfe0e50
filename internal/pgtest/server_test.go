package pgtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestDSNOfAnotherRole(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{
		"postgres://postgres:secret@db.example:5433/shop?sslmode=disable",
		"postgresql://db.example:5433/shop?sslmode=disable",
		"host=db.example port=5433 dbname=shop user=postgres password=secret sslmode=disable",
	} {
		c, err := pgx.ParseConfig(as(t, dsn, runtimeRole))
		if err != nil {
			t.Errorf("%s: %v", dsn, err)
			continue
		}
		if c.User != runtimeRole || c.Password != runtimeRole || c.Host != "db.example" || c.Port != 5433 || c.Database != "shop" || c.TLSConfig != nil {
			t.Errorf("%s: %s %s %s %d %s", dsn, c.User, c.Password, c.Host, c.Port, c.Database)
		}
	}
}

// The environment wins over the file, which is found from any package's directory.
func TestDSN(t *testing.T) {
	dir := t.TempDir()
	deep := filepath.Join(dir, "pkg", "deep")
	for _, d := range []string{deep, filepath.Join(dir, ".services")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"go.mod":        "module m\n",
		".services/env": "export OTHER=1\nexport EFFECTONCE_TEST_POSTGRES='postgres://file?a=b'\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(deep)
	t.Setenv(variable, "postgres://environment")
	if got := DSN(t); got != "postgres://environment" {
		t.Error(got)
	}
	t.Setenv(variable, "")
	if got := DSN(t); got != "postgres://file?a=b" {
		t.Error(got)
	}
}
