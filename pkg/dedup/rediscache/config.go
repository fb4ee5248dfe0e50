package rediscache

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"
)

// Config says where Redis is and how much it may cost. It holds no secret: a
// login is a function, which prints as an address.
type Config struct {
	// Addresses are host:port pairs: one server; or the Sentinels; or some nodes
	// of a Cluster, which name the others.
	Addresses []string
	// Sentinel is the name of the master that the Sentinels watch. Set: Addresses
	// are Sentinels.
	Sentinel string
	// Cluster says that Addresses are nodes of a Redis Cluster.
	Cluster bool
	// Database is a number from 0. A Cluster has 0 only.
	Database int

	// Login returns user and password whenever a connection is made, so a rotated
	// password counts from the next one on. An empty user is Redis's default user.
	// Nil: none is sent.
	Login func() (user, password string)
	// SentinelLogin is the same for the Sentinels, asked once.
	SentinelLogin func() (user, password string)
	// TLS is for servers and Sentinels alike. Without a ServerName each is verified
	// against the host dialled. Nil: plain TCP.
	TLS *tls.Config

	// Prefix begins each key; a UUID follows, and the number of a part. Installations that share
	// a server need not differ in it. Default "effectonce:".
	Prefix string
	// TTL is how long an image stays after it was stored. Default 7 days.
	TTL time.Duration
	// Timeout bounds what is done for one part of an image (4 MiB): dial, handshake,
	// send, read. Default 250 ms, for which 17 MB/s are needed.
	Timeout time.Duration
	// MaxBytes is the largest image stored, and the most memory that is given for
	// one. Default 2 GiB, a gate for 1.1 billion keys.
	MaxBytes int64

	// Failures in a row open the breaker. Default 5.
	Failures int
	// Pause is how long it stays open before one call tries. Default 10 s.
	Pause time.Duration
	// Rests is told when the breaker opens, and when Redis works again. It must not
	// wait. Nil: nobody is told.
	Rests func(resting bool)
}

func (c Config) withDefaults() Config {
	c.Prefix = orDefault(c.Prefix, "effectonce:")
	c.TTL = orDefault(c.TTL, 7*24*time.Hour)
	c.Timeout = orDefault(c.Timeout, 250*time.Millisecond)
	c.MaxBytes = orDefault(c.MaxBytes, 2<<30)
	c.Failures = orDefault(c.Failures, 5)
	c.Pause = orDefault(c.Pause, 10*time.Second)
	return c
}

func orDefault[T comparable](value, otherwise T) T {
	var zero T
	if value == zero {
		return otherwise
	}
	return value
}

// Validate returns all faults at once.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(len(c.Addresses) > 0, "redis: no address")
	for _, a := range c.Addresses {
		host, port, err := net.SplitHostPort(a)
		check(err == nil && host != "" && port != "", "redis: %q is not host:port", a)
	}
	check(c.Sentinel == "" || !c.Cluster, "redis: either Sentinels or a Cluster")
	check(len(c.Addresses) < 2 || c.Sentinel != "" || c.Cluster, "redis: several addresses are Sentinels or a Cluster: say which")
	check(c.SentinelLogin == nil || c.Sentinel != "", "redis: a login for Sentinels, but no Sentinel")
	check(c.Database >= 0, "redis: database %d is negative", c.Database)
	check(c.Database == 0 || !c.Cluster, "redis: a Cluster has only database 0, not %d", c.Database)
	check(c.TTL == 0 || c.TTL >= time.Millisecond, "redis: a TTL of %s is no time", c.TTL)
	check(c.Timeout >= 0, "redis: timeout %s is negative", c.Timeout)
	check(c.MaxBytes >= 0, "redis: images of %d bytes are negative", c.MaxBytes)
	check(c.Failures >= 0, "redis: %d failures are negative", c.Failures)
	check(c.Pause >= 0, "redis: pause %s is negative", c.Pause)
	return errors.Join(faults...)
}
