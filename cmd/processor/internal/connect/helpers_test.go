package connect_test

import (
	"crypto/tls"
	"testing"

	"effectonce/internal/certtest"
)

func serverTLS(t *testing.T, pair certtest.Pair) *tls.Config {
	t.Helper()
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
}
