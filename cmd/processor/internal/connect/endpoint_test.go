package connect_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/internal/certtest"
)

// token makes the client ask the endpoint at url, as an authentication does.
func token(t *testing.T, url string, tls config.TLS) error {
	t.Helper()
	cfg := config.Kafka{Brokers: []string{"127.0.0.1:1"}, TLS: tls, SASL: config.SASL{
		Mechanism: "OAUTHBEARER", TokenURL: url, ClientID: "client", ClientSecret: config.NewSecret(canary),
	}}
	client := newClient(t, cfg)
	mechanisms, ok := client.OptValue(kgo.SASL).([]sasl.Mechanism)
	if !ok || len(mechanisms) != 1 {
		t.Fatalf("mechanisms: %v", mechanisms)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, _, err := mechanisms[0].Authenticate(ctx, "127.0.0.1:1")
	return err
}

func secureEndpoint(t *testing.T, handler http.HandlerFunc) (url string, tls config.TLS) {
	t.Helper()
	ca := certtest.NewCA(t)
	server := httptest.NewUnstartedServer(handler)
	server.TLS = serverTLS(t, ca.Server(t, "127.0.0.1"))
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL, config.TLS{Enabled: true, CA: ca.File(t)}
}

func answerToken(w http.ResponseWriter, token string) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"access_token": token, "token_type": "Bearer"}) // the client will miss it
}

func TestEndpointOverTLS(t *testing.T) {
	url, tls := secureEndpoint(t, func(w http.ResponseWriter, _ *http.Request) { answerToken(w, "abc") })
	if err := token(t, url, tls); err != nil {
		t.Error(err)
	}
	tls.CA = certtest.NewCA(t).File(t)
	refused(t, token(t, url, tls), "127.0.0.1", "unknown authority")
}

// The answers of an endpoint that is not what it should be.
func TestHostileEndpoint(t *testing.T) {
	elsewhere := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/stolen" {
			t.Error("the redirect was followed")
		}
		http.Redirect(w, r, "/stolen?"+canary, http.StatusTemporaryRedirect)
	}
	for name, c := range map[string]struct {
		handler http.HandlerFunc
		reason  string
	}{
		"redirect":       {elsewhere, "307"},
		"echo":           {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, canary, http.StatusBadRequest) }, "400"},
		"no token":       {func(w http.ResponseWriter, _ *http.Request) { answerToken(w, "") }, "not a token"},
		"breaks out":     {func(w http.ResponseWriter, _ *http.Request) { answerToken(w, canary+"\x01auth=x") }, "not a bearer token"},
		"not JSON":       {func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, canary) }, "not a token"},
		"endless":        {func(w http.ResponseWriter, _ *http.Request) { answerToken(w, strings.Repeat("x", 8<<20)) }, "not a token"},
		"endless header": {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("x", 128<<10)) }, "headers"},
	} {
		t.Run(name, func(t *testing.T) {
			url, tls := secureEndpoint(t, c.handler)
			refused(t, token(t, url, tls), "127.0.0.1", c.reason)
		})
	}
}

// The address counts, not the name or how the address is written.
func TestForbiddenAddresses(t *testing.T) {
	tls := config.TLS{Enabled: true}
	for _, host := range []string{"169.254.169.254", "[::ffff:169.254.169.254]", "[fe80::1]", "[fd00:ec2::254]", "0.0.0.0", "[::]"} {
		refused(t, token(t, "https://"+host+"/token", tls), "token endpoint", "not one a token endpoint may have")
	}
	// What is allowed fails for another reason: nobody listens there.
	addr := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), 1)
	refused(t, token(t, "https://"+addr.String()+"/token", tls), addr.String(), "connection refused")
}

// No secret leaves readable without being asked to.
func TestReadableSecretsAreRefused(t *testing.T) {
	secret := config.NewSecret(canary)
	for name, sasl := range map[string]config.SASL{
		"PLAIN":       {Mechanism: "PLAIN", Username: "alice", Password: secret},
		"OAUTHBEARER": {Mechanism: "OAUTHBEARER", TokenFile: "/nowhere"},
	} {
		cfg := config.Kafka{Brokers: []string{"127.0.0.1:1"}, SASL: sasl}
		_, err := connect.Kafka(cfg)
		refused(t, err, name, "readable")
		cfg.SASL.AllowPlaintext = true
		if _, err := connect.Kafka(cfg); err != nil {
			t.Errorf("%s, forced: %v", name, err)
		}
	}
	cfg := config.Kafka{TLS: config.TLS{Enabled: true}, SASL: config.SASL{
		Mechanism: "OAUTHBEARER", TokenURL: "http://idp.example/?" + canary, ClientID: "client", ClientSecret: secret,
	}}
	for _, url := range []string{"http://idp.example/", "ftp://127.0.0.1/" + canary, "file:///etc/passwd", "https://%zz" + canary} {
		cfg.SASL.TokenURL = url
		_, err := connect.Kafka(cfg)
		refused(t, err, "kafka.sasl", "token_url")
	}
}

func TestUnusableFilesAreNamed(t *testing.T) {
	ca := certtest.NewCA(t)
	pair := ca.Client(t, "alice")
	cert, _ := pair.Files(t, t.TempDir())
	_, key := ca.Client(t, "bob").Files(t, t.TempDir())
	for reason, tls := range map[string]config.TLS{
		"no such file":      {CA: "/nowhere/ca.pem"},
		"holds no PEM":      {CA: key},
		"does not match":    {Cert: cert, Key: key},
		"/nowhere/cert.pem": {Cert: "/nowhere/cert.pem", Key: key},
	} {
		tls.Enabled = true
		_, err := connect.Kafka(config.Kafka{TLS: tls})
		refused(t, err, "kafka.tls", reason)
	}
}
