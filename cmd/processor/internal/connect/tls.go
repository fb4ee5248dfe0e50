package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync"

	"effectonce/cmd/processor/internal/config"
)

var errNoCertificate = errors.New("holds no PEM certificate")

// clientTLS verifies the servers' certificates against the host dialled, or
// against the configured server name.
func clientTLS(cfg config.TLS) (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: cfg.ServerName}
	if cfg.CA != "" {
		secure.RootCAs = x509.NewCertPool()
		if err := trust(secure.RootCAs, cfg.CA); err != nil {
			return nil, err
		}
	}
	if cfg.Cert != "" {
		cert := &certificate{certPath: cfg.Cert, keyPath: cfg.Key}
		if _, err := cert.load(nil); err != nil {
			return nil, err
		}
		secure.GetClientCertificate = cert.load
	}
	return secure, nil
}

// trust adds the authorities of a PEM file to the pool.
func trust(pool *x509.CertPool, path string) error {
	pem, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("ca: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return fmt.Errorf("ca: %s %w", path, errNoCertificate)
	}
	return nil
}

// certificate is the client's pair of files, read again for every handshake, so
// that a rotated one counts from the next connection on. Two files cannot be
// replaced in one step: while they do not fit each other, or are not there, the
// last pair that did is shown.
type certificate struct {
	certPath, keyPath string

	mu   sync.Mutex // guards last
	last *tls.Certificate
}

func (c *certificate) load(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	pair, err := tls.LoadX509KeyPair(c.certPath, c.keyPath)
	switch {
	case err == nil:
		c.last = &pair
	case c.last == nil:
		return nil, fmt.Errorf("client certificate %s: %w", c.certPath, err)
	}
	return c.last, nil
}
