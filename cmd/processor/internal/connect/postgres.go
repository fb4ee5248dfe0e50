package connect

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/cmd/processor/internal/config"
)

// nameCap is Postgres's limit of application_name, in bytes.
const nameCap = 63

var errPool = errors.New("postgres.dsn: a pool setting in it cannot be read")

// Postgres returns the configuration of a pool for the pipeline's database.
// Sessions need no state of their own, so a pooler in transaction mode may stand
// in front: no statement has a name, and no run-time parameter is sent but
// application_name and what the DSN asks for. A dead peer is noticed after half
// a minute. Of several hosts the one that takes writes is used. sslmode is
// verify-full for hosts that are not loopback, unless the configuration says
// otherwise; a rotated client certificate counts from the next connection on.
func Postgres(cfg config.Postgres, pipeline string) (*pgxpool.Config, error) {
	dsn, err := cfg.ConnString()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	pool, err := pgxpool.ParseConfig(dsn.Reveal())
	if err != nil {
		return nil, errPool // what the driver says would quote the DSN
	}
	c := pool.ConnConfig
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	c.StatementCacheCapacity = 0
	c.RuntimeParams["application_name"] = applicationName(pipeline)
	c.ConnectTimeout = cmp.Or(c.ConnectTimeout, dialTimeout)
	c.DialFunc = (&net.Dialer{
		Timeout:         c.ConnectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3},
	}).DialContext
	if c.ValidateConnect == nil && severalHosts(&c.Config) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
	return pool, nil
}

// applicationName tells people whose session it is. The process stays readable
// however long the host's name is.
func applicationName(pipeline string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	head, tail := "effectonce:"+pipeline+":", fmt.Sprintf(":%d", os.Getpid())
	head = head[:min(len(head), nameCap-len(tail))]
	return head + host[:min(len(host), nameCap-len(head)-len(tail))] + tail
}

// severalHosts reports whether more than one server is named. One host has
// several entries when its TLS mode or its name allows several ways.
func severalHosts(c *pgconn.Config) bool {
	for _, f := range c.Fallbacks {
		if !strings.EqualFold(f.Host, c.Host) || f.Port != c.Port {
			return true
		}
	}
	return false
}
