package connect

import (
	"fmt"
	"time"

	"effectonce/cmd/processor/internal/config"
	"effectonce/pkg/dedup/rediscache"
)

// Redis returns the configuration of the filter cache, without addresses if there is
// none. A client certificate is read again for every connection.
func Redis(cfg config.Redis) (rediscache.Config, error) {
	c := rediscache.Config{
		Addresses: cfg.Addresses, Sentinel: cfg.Sentinel, Cluster: cfg.Cluster, Database: cfg.Database,
		Login:  login(cfg.Username, cfg.Password),
		Prefix: cfg.Prefix, Timeout: time.Duration(cfg.Timeout),
	}
	if cfg.Sentinel != "" {
		c.SentinelLogin = login(cfg.SentinelUsername, cfg.SentinelPassword)
	}
	if !cfg.TLS.Enabled {
		return c, nil
	}
	var err error
	if c.TLS, err = clientTLS(cfg.TLS); err != nil {
		return c, fmt.Errorf("redis.tls: %w", err)
	}
	return c, nil
}

// login hands out user and password, nil if there is none.
func login(user string, password config.Secret) func() (string, string) {
	if password.IsZero() {
		return nil
	}
	return func() (string, string) { return user, password.Reveal() }
}
