package connect_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
	"go.uber.org/goleak"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/internal/certtest"
	"effectonce/internal/kafkatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const canary = "canary-5ecret"

// kafka is one private broker with a door for each way in.
type kafka struct {
	*kafkatest.Private

	ca string // file of the authority that signed everything
}

// sessionLife is how long the SASL listener lets a session live. The client
// authenticates again a second before; the broker takes that once a second.
const sessionLife = 4 * time.Second

func startKafka(t *testing.T, ca *certtest.CA) *kafka {
	t.Helper()
	login := kafkatest.Keystore(ca.Server(t, "127.0.0.1"), ca)
	login["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER"
	login["connections.max.reauth.ms"] = fmt.Sprint(sessionLife.Milliseconds())
	const security = "org.apache.kafka.common.security."
	login["plain.sasl.jaas.config"] = security + `plain.PlainLoginModule required user_alice="` + canary + `";`
	login["scram-sha-256.sasl.jaas.config"] = security + "scram.ScramLoginModule required;"
	login["scram-sha-512.sasl.jaas.config"] = security + "scram.ScramLoginModule required;"
	login["oauthbearer.sasl.jaas.config"] = security + `oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";`
	mutual := kafkatest.Keystore(ca.Server(t, "broker.internal"), ca)
	mutual["ssl.client.auth"] = "required"
	b := &kafka{ca: ca.File(t), Private: kafkatest.StartPrivate(t, nil,
		kafkatest.Listener{Name: "LOGIN", Protocol: "SASL_SSL", Properties: login},
		kafkatest.Listener{Name: "MUTUAL", Protocol: "SSL", Properties: mutual})}
	admin := kadm.NewClient(kafkatest.Client(t, b.Addr))
	for _, mechanism := range []kadm.ScramMechanism{kadm.ScramSha256, kadm.ScramSha512} {
		users, err := admin.AlterUserSCRAMs(t.Context(), nil, []kadm.UpsertSCRAM{
			{User: "alice", Mechanism: mechanism, Iterations: 4096, Password: canary},
		})
		if err != nil || users.Error() != nil {
			t.Fatalf("create user: %v, %v", err, users.Error())
		}
	}
	return b
}

// login is the configuration for the SASL listener.
func (b *kafka) login(sasl config.SASL) config.Kafka {
	return config.Kafka{Brokers: []string{b.ListenerAddr("LOGIN")}, TLS: config.TLS{Enabled: true, CA: b.ca}, SASL: sasl}
}

// check connects and looks at the cluster.
func check(t *testing.T, cfg config.Kafka) error {
	t.Helper()
	return checkClient(t, newClient(t, cfg))
}

func newClient(t *testing.T, cfg config.Kafka, more ...kgo.Opt) *kgo.Client {
	t.Helper()
	opts, err := connect.Kafka(cfg)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kgo.NewClient(append(opts, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func checkClient(t *testing.T, client *kgo.Client) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	return connect.CheckKafka(ctx, client)
}

// refused asserts an error with the address and the reason and without the secret.
func refused(t *testing.T, err error, address, reason string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("let in, want refused with %q", reason)
	case !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), reason):
		t.Errorf("error %q, want it to name %s and %q", err, address, reason)
	case strings.Contains(err.Error(), canary):
		t.Errorf("error %q shows the secret", err)
	}
}

// One broker serves all, since each costs seconds and memory.
func TestKafka(t *testing.T) {
	ca := certtest.NewCA(t)
	b := startKafka(t, ca)
	t.Run("passwords", func(t *testing.T) { testPasswords(t, b) })
	t.Run("server certificate", func(t *testing.T) { testServerCertificate(t, b) })
	t.Run("client certificate", func(t *testing.T) { testClientCertificate(t, b, ca) })
	t.Run("token file", func(t *testing.T) { testTokenFile(t, b) })
	t.Run("token endpoint", func(t *testing.T) { testTokenEndpoint(t, b) })
}

func testPasswords(t *testing.T, b *kafka) {
	for _, mechanism := range []string{"PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"} {
		t.Run(mechanism, func(t *testing.T) {
			right := config.SASL{Mechanism: mechanism, Username: "alice", Password: config.NewSecret(canary)}
			if err := check(t, b.login(right)); err != nil {
				t.Error(err)
			}
			wrong := right
			wrong.Password = config.NewSecret(canary + "!")
			err := check(t, b.login(wrong))
			refused(t, err, b.ListenerAddr("LOGIN"), "SASL_AUTHENTICATION_FAILED")
			if !errors.Is(err, kerr.SaslAuthenticationFailed) {
				t.Errorf("error %v is not SaslAuthenticationFailed", err)
			}
		})
	}
}

func testServerCertificate(t *testing.T, b *kafka) {
	cfg := b.login(config.SASL{Mechanism: "SCRAM-SHA-256", Username: "alice", Password: config.NewSecret(canary)})
	other := cfg
	other.TLS.CA = certtest.NewCA(t).File(t)
	refused(t, check(t, other), cfg.Brokers[0], "unknown authority")
	other = cfg
	other.TLS.ServerName = "elsewhere.example"
	refused(t, check(t, other), cfg.Brokers[0], "elsewhere.example")
	other = cfg
	other.TLS = config.TLS{} // SCRAM may go without TLS, but the broker's door wants it
	if err := check(t, other); err == nil {
		t.Error("a TLS listener answered in the clear")
	}
}

func testClientCertificate(t *testing.T, b *kafka, ca *certtest.CA) {
	dir := t.TempDir()
	cert, key := ca.Client(t, "alice").Files(t, dir)
	cfg := config.Kafka{
		Brokers: []string{b.ListenerAddr("MUTUAL")},
		TLS:     config.TLS{Enabled: true, CA: b.ca, Cert: cert, Key: key, ServerName: "broker.internal"},
	}
	if err := check(t, cfg); err != nil {
		t.Error(err)
	}
	other := cfg
	other.TLS.ServerName = "" // then the certificate must carry the host dialled
	refused(t, check(t, other), cfg.Brokers[0], "127.0.0.1")
	other = cfg
	other.TLS.Cert, other.TLS.Key = "", ""
	refused(t, check(t, other), cfg.Brokers[0], "certificate")

	// A rotated certificate counts from the next connection of the same client on.
	client := newClient(t, cfg)
	stranger := certtest.NewCA(t).Client(t, "alice")
	stranger.Files(t, dir)
	refused(t, checkClient(t, client), cfg.Brokers[0], "certificate")
	ca.Client(t, "alice").Files(t, dir)
	if err := checkClient(t, client); err != nil {
		t.Errorf("after the rotation: %v", err)
	}

	// Halfway through a rotation the files do not fit each other: the last pair counts.
	client = newClient(t, cfg)
	if err := os.WriteFile(cert, stranger.Cert, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkClient(t, client); err != nil {
		t.Errorf("halfway through a rotation: %v", err)
	}
	if _, err := connect.Kafka(cfg); err == nil {
		t.Error("started with files that do not fit each other")
	}
}

// unsecured is a token that the broker's default validator accepts.
func unsecured(t *testing.T, subject string, life time.Duration) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"sub": subject, "iat": time.Now().Unix(), "exp": time.Now().Add(life).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode(claims) + "."
}

func testTokenFile(t *testing.T, b *kafka) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(unsecured(t, "alice", time.Hour) + "\n")
	cfg := b.login(config.SASL{Mechanism: "OAUTHBEARER", TokenFile: path})
	if err := check(t, cfg); err != nil {
		t.Error(err)
	}
	client := newClient(t, cfg) // made with the good token in the file
	write(unsecured(t, canary, -time.Hour))
	refused(t, checkClient(t, client), cfg.Brokers[0], "SASL_AUTHENTICATION_FAILED")
	write("two\nlines " + canary)
	refused(t, check(t, cfg), path, "is not a bearer token")
	write(strings.Repeat("x", 64<<10+1))
	refused(t, check(t, cfg), path, "is not a bearer token")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	refused(t, check(t, cfg), path, "no such file")
}

// disconnects counts the connections a client loses.
type disconnects struct{ atomic.Int64 }

func (d *disconnects) OnBrokerDisconnect(kgo.BrokerMetadata, net.Conn) { d.Add(1) }

// The broker ends a session that is not renewed in time, so a client that goes on
// talking must authenticate again and again on its connection, with fresh tokens.
func testTokenEndpoint(t *testing.T, b *kafka) {
	endpoint := startEndpoint(t)
	cfg := b.login(config.SASL{
		Mechanism: "OAUTHBEARER", TokenURL: endpoint.URL, ClientID: "client", ClientSecret: config.NewSecret(canary), Scopes: []string{"kafka", "read"},
	})
	var lost disconnects
	client := newClient(t, cfg, kgo.WithHooks(&lost))
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 10*sessionLife)
	defer cancel()
	for endpoint.asked.Load() < 3 {
		if err := connect.CheckKafka(ctx, client); err != nil {
			t.Fatalf("after %d tokens: %v", endpoint.asked.Load(), err)
		}
		<-again.C
	}
	if n := lost.Load(); n != 0 {
		t.Errorf("%d connections were lost", n)
	}
	cfg.SASL.ClientSecret = config.NewSecret(canary + "!")
	refused(t, check(t, cfg), cfg.Brokers[0], "answered 401 Unauthorized invalid_client")
}

// endpoint gives tokens to one client, by RFC 6749, and says that they live three
// seconds.
type endpoint struct {
	*httptest.Server

	asked atomic.Int64
}

func startEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		user, password, _ := r.BasicAuth()
		answer := map[string]any{"access_token": unsecured(t, "alice", time.Hour), "token_type": "Bearer", "expires_in": 3}
		if user != "client" || password != canary || r.FormValue("scope") != "kafka read" {
			w.WriteHeader(http.StatusUnauthorized)
			answer = map[string]any{"error": "invalid_client", "error_description": "not " + password}
		} else {
			e.asked.Add(1)
		}
		_ = json.NewEncoder(w).Encode(answer) // the client will miss it
	}))
	t.Cleanup(e.Close)
	return e
}

func TestOldKafkaIsRefused(t *testing.T) {
	for version, ok := range map[*kversion.Versions]bool{kversion.V3_0_0(): false, kversion.V3_1_0(): true} {
		cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.MaxVersions(version))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(cluster.Close)
		err = check(t, config.Kafka{Brokers: cluster.ListenAddrs()})
		if errors.Is(err, connect.ErrTooOld) == ok || ok && err != nil {
			t.Errorf("%s: %v", version.VersionGuess(), err)
		}
	}
}

func TestUnreachableKafka(t *testing.T) {
	cluster := kafkatest.Fake(t, 1)
	addr := cluster.ListenAddrs()[0]
	cluster.Close()
	refused(t, check(t, config.Kafka{Brokers: []string{addr}}), addr, "refused")
}
