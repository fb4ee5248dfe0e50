package run

import (
	"bytes"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"effectonce/cmd/processor/internal/config"
	"effectonce/internal/redistest"
)

// A Redis that is not there is a warning, and one that is there none. What the client
// library says by itself comes through the log, and no password does.
func TestOpenCache(t *testing.T) { //nolint:paralleltest // the library has one logger
	var out bytes.Buffer
	open := func(change func(*config.Redis)) string {
		t.Helper()
		out.Reset()
		c := config.Default().Redis
		c.Password = config.NewSecret("hunter2")
		change(&c)
		cache, err := openCache(t.Context(), c, zerolog.New(&out))
		if err != nil {
			t.Fatal(err)
		}
		if (cache == nil) != (len(c.Addresses) == 0) {
			t.Errorf("%v: a cache %v", c.Addresses, cache != nil)
		}
		if cache != nil {
			if err := cache.Close(); err != nil {
				t.Error(err)
			}
		}
		if strings.Contains(out.String(), "hunter2") {
			t.Errorf("a secret is shown: %s", out.String())
		}
		return out.String()
	}
	if said := open(func(*config.Redis) {}); said != "" {
		t.Errorf("without Redis: %s", said)
	}
	said := open(func(c *config.Redis) { c.Addresses = []string{"127.0.0.1:1"} })
	if !strings.Contains(said, `"level":"warn"`) || !strings.Contains(said, "redis is of no use now") {
		t.Errorf("nobody there: %s", said)
	}
	if !strings.Contains(said, "failed to dial") {
		t.Errorf("the library's own words are not in the log: %s", said)
	}
	s := redistest.New(t)
	out.Reset()
	if said := open(func(c *config.Redis) { c.Addresses, c.Password = []string{s.Address}, config.Secret{} }); strings.Contains(said, "warn") {
		t.Errorf("a Redis that works: %s", said)
	}
	c := config.Default().Redis
	c.Addresses, c.TLS = []string{s.Address}, config.TLS{Enabled: true, CA: "/no/such/file"}
	if _, err := openCache(t.Context(), c, zerolog.Nop()); err == nil || !strings.HasPrefix(err.Error(), "redis.tls: ") {
		t.Errorf("%v", err)
	}
}
