package run

import (
	"testing"

	"github.com/rs/zerolog"

	"effectonce/cmd/processor/internal/config"
)

// A limit in the connection string is kept, so that a pool too small is refused at
// the start; without one there is none.
func TestAPoolLimitIsTheUsers(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]int{
		"postgres://a@127.0.0.1/b":                  0,
		"postgres://a@127.0.0.1/b?pool_max_conns=3": 3,
		"host=127.0.0.1 user=a pool_max_conns=12":   12,
	} {
		c := config.Default()
		c.Pipeline, c.Kafka.Brokers, c.Postgres.DSN = "p", []string{"127.0.0.1:9092"}, config.NewDSN(dsn)
		cfg, err := Pipeline(c, zerolog.Nop())
		if err != nil {
			t.Fatal(err)
		}
		if cfg.MaxConns != want {
			t.Errorf("%s: %d, want %d", dsn, cfg.MaxConns, want)
		}
	}
}
