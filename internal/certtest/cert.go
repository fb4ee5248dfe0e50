// Package certtest makes certificate authorities and certificates for tests:
// P-256 keys, PEM, valid for an hour, made anew in each test.
package certtest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// CA signs certificates.
type CA struct {
	PEM  []byte // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its key (PKCS #8), both PEM.
type Pair struct{ Cert, Key []byte }

// NewCA makes an authority nobody else trusts.
func NewCA(tb testing.TB) *CA {
	tb.Helper()
	template := template(tb, "test authority")
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key := newKey(tb)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		tb.Fatalf("sign authority: %v", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatalf("parse authority: %v", err)
	}
	return &CA{PEM: block("CERTIFICATE", der), cert: cert, key: key}
}

// File writes the authority's certificate to a file of the test's and returns its path.
func (ca *CA) File(tb testing.TB) string {
	tb.Helper()
	return write(tb, filepath.Join(tb.TempDir(), "ca.pem"), ca.PEM)
}

// Server makes a certificate for host names and addresses.
func (ca *CA) Server(tb testing.TB, hosts ...string) Pair {
	tb.Helper()
	template := template(tb, "test server")
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	return ca.sign(tb, template)
}

// Client makes a client certificate for a common name.
func (ca *CA) Client(tb testing.TB, name string) Pair {
	tb.Helper()
	template := template(tb, name)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return ca.sign(tb, template)
}

// Files writes the pair to files in dir, replacing earlier ones, and returns
// their paths. The key is readable by its owner only.
func (p Pair) Files(tb testing.TB, dir string) (cert, key string) {
	tb.Helper()
	return write(tb, filepath.Join(dir, "cert.pem"), p.Cert), write(tb, filepath.Join(dir, "key.pem"), p.Key)
}

func (ca *CA) sign(tb testing.TB, template *x509.Certificate) Pair {
	tb.Helper()
	key := newKey(tb)
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		tb.Fatalf("sign certificate: %v", err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		tb.Fatalf("encode key: %v", err)
	}
	return Pair{block("CERTIFICATE", der), block("PRIVATE KEY", pkcs8)}
}

func template(tb testing.TB, name string) *x509.Certificate {
	tb.Helper()
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		tb.Fatalf("draw serial number: %v", err)
	}
	return &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		KeyUsage: x509.KeyUsageDigitalSignature, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour)}
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatalf("draw key: %v", err)
	}
	return key
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// write replaces the file in one step, as a rotation does.
func write(tb testing.TB, path string, data []byte) string {
	tb.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		tb.Fatalf("write certificate: %v", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		tb.Fatalf("write certificate: %v", err)
	}
	return path
}
