package rediscache

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// A rebuild asks for a few segments at a time, and then not for a long while. An
// idle connection is one that somebody in between has forgotten.
const (
	poolSize = 8
	maxIdle  = time.Minute
)

// dialer makes a connection, TLS included.
type dialer func(ctx context.Context, network, address string) (net.Conn, error)

func netDialer(cfg Config) dialer {
	plain := &net.Dialer{Timeout: cfg.Timeout}
	if cfg.TLS == nil {
		return plain.DialContext
	}
	return (&tls.Dialer{NetDialer: plain, Config: cfg.TLS}).DialContext
}

// connect makes the client. Nothing is tried twice: by the time a second try had
// an answer, the blocks would have been read. It sends no command that a user with
// few rights may not.
func connect(cfg Config, dial dialer) redis.UniversalClient {
	options := &redis.UniversalOptions{
		Addrs:      cfg.Addresses,
		MasterName: cfg.Sentinel,
		DB:         cfg.Database,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			return guard(conn, partBytes), nil
		},
		CredentialsProvider: cfg.Login,
		Protocol:            2, // GET and SET have no use for pushes and their handshake

		MaxRetries: -1, DialerRetries: 1, MaxRedirects: 1,
		DialTimeout: cfg.Timeout, ReadTimeout: cfg.Timeout, WriteTimeout: cfg.Timeout, PoolTimeout: cfg.Timeout,
		ContextTimeoutEnabled: true,
		PoolSize:              poolSize,
		ConnMaxIdleTime:       maxIdle,

		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if cfg.SentinelLogin != nil {
		options.SentinelUsername, options.SentinelPassword = cfg.SentinelLogin()
	}
	switch {
	case cfg.Sentinel != "":
		return redis.NewFailoverClient(options.Failover())
	case cfg.Cluster:
		return redis.NewClusterClient(options.Cluster())
	}
	return redis.NewClient(options.Simple())
}

// LogTo hands over what the client library has to say, such as that it could not
// dial, or that a Sentinel names another master; otherwise it writes to standard
// error by itself. It is one for the process.
func LogTo(say func(text string)) { redis.SetLogger(teller(say)) }

type teller func(string)

// Printf implements the library's logger.
func (t teller) Printf(_ context.Context, format string, args ...any) {
	t(fmt.Sprintf(format, args...))
}
