package connect

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"effectonce/cmd/processor/internal/config"
)

// tokenTimeout bounds one visit to the token endpoint.
const tokenTimeout = 10 * time.Second

var (
	errTokenURL  = errors.New("token_url wants https; http is for loopback addresses, or with kafka.sasl.allow_plaintext")
	errForbidden = errors.New("address is not one a token endpoint may have")
)

// endpoint fetches tokens by client credentials and keeps one until a fifth of
// its life is left: brokers end a session with its token, so an older one would
// bring ever shorter sessions.
type endpoint struct {
	config clientcredentials.Config
	client *http.Client
	host   string // for people

	mu      sync.Mutex // guards what follows, and lets one caller at a time fetch
	token   string
	renewAt time.Time
}

func newEndpoint(cfg config.Kafka) (*endpoint, error) {
	s := cfg.SASL
	u, err := url.Parse(s.TokenURL)
	if err != nil || u.Host == "" {
		return nil, errors.New("token_url is not a URL") // what the parser says would quote it
	}
	if u.Scheme != "https" && (u.Scheme != "http" || !s.AllowPlaintext && !loopback(u.Hostname())) {
		return nil, errTokenURL
	}
	client, err := tokenClient(cfg.TLS)
	if err != nil {
		return nil, err
	}
	return &endpoint{
		config: clientcredentials.Config{ClientID: s.ClientID, ClientSecret: s.ClientSecret.Reveal(), TokenURL: s.TokenURL, Scopes: s.Scopes},
		client: client, host: u.Host,
	}, nil
}

// tokenClient follows no redirect and no proxy of the environment, bounds time
// and size, and looks at the address it dials, whatever the name resolved to. It
// trusts the system's authorities and those of kafka.tls.ca.
func tokenClient(cfg config.TLS) (*http.Client, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool() // a system without authorities
	}
	if cfg.Enabled && cfg.CA != "" {
		if err := trust(pool, cfg.CA); err != nil {
			return nil, err
		}
	}
	dialer := &net.Dialer{Timeout: dialTimeout, Control: refuseMetadata}
	return &http.Client{
		Timeout:       tokenTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DialContext: dialer.DialContext, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10,
			TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool},
		},
	}, nil
}

// refuseMetadata ends a dial of a link-local address, where clouds serve the
// machine's own credentials, and of addresses that are nobody's.
func refuseMetadata(_, address string, _ syscall.RawConn) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%w: %s", errForbidden, address)
	}
	ip := to.Addr().Unmap()
	metadata := netip.MustParsePrefix("fd00:ec2::/32")
	if ip.IsLinkLocalUnicast() || ip.IsMulticast() || ip.IsUnspecified() || metadata.Contains(ip) {
		return fmt.Errorf("%w: %s", errForbidden, ip)
	}
	return nil
}

func loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.Unmap().IsLoopback()
}

// authenticate returns the kept token, or a new one.
func (e *endpoint) authenticate(ctx context.Context) (oauth.Auth, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.token != "" && time.Now().Before(e.renewAt) {
		return oauth.Auth{Token: e.token}, nil
	}
	fresh, err := e.config.Token(context.WithValue(ctx, oauth2.HTTPClient, e.client))
	if err != nil {
		return oauth.Auth{}, fmt.Errorf("token endpoint %s: %w", e.host, unquoted(err))
	}
	auth, err := bearer(fresh.AccessToken)
	if err != nil {
		return oauth.Auth{}, fmt.Errorf("token endpoint %s: what it sent %w", e.host, err)
	}
	e.token, e.renewAt = auth.Token, time.Time{}
	if !fresh.Expiry.IsZero() {
		e.renewAt = time.Now().Add(time.Until(fresh.Expiry) * 4 / 5)
	}
	return auth, nil
}

// unquoted is the reason without the body of the answer and without the URL's
// query: either may hold a secret.
func unquoted(err error) error {
	var answer *oauth2.RetrieveError
	var visit *url.Error
	switch {
	case errors.As(err, &answer):
		return fmt.Errorf("answered %s", strings.TrimSpace(answer.Response.Status+" "+visible(answer.ErrorCode)))
	case errors.As(err, &visit):
		return visit.Err
	default:
		return errors.New("answered with something that is not a token")
	}
}

// visible is an error code of RFC 6749, or nothing if it is not one.
func visible(code string) string {
	if len(code) > 64 || strings.ContainsFunc(code, func(r rune) bool { return r != '_' && (r < 'a' || r > 'z') }) {
		return ""
	}
	return code
}
