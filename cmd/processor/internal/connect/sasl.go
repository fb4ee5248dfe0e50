package connect

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"effectonce/cmd/processor/internal/config"
)

// errReadable says that a secret would cross the network readable.
var errReadable = errors.New("without TLS the secret crosses the network readable: set kafka.tls.enabled, or kafka.sasl.allow_plaintext")

// authentication is the mechanism towards the brokers, nil when there is none.
func authentication(cfg config.Kafka) (sasl.Mechanism, error) {
	s := cfg.SASL
	readable := !cfg.TLS.Enabled && !s.AllowPlaintext
	switch s.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		if readable {
			return nil, fmt.Errorf("PLAIN: %w", errReadable)
		}
		return plain.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: s.Username, Pass: s.Password.Reveal()}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		if readable {
			return nil, fmt.Errorf("OAUTHBEARER: %w", errReadable)
		}
		if s.TokenFile != "" {
			return oauth.Oauth(fileToken(s.TokenFile)), nil
		}
		endpoint, err := newEndpoint(cfg)
		if err != nil {
			return nil, err
		}
		return oauth.Oauth(endpoint.authenticate), nil
	default:
		return nil, fmt.Errorf("mechanism %q is none of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER", s.Mechanism)
	}
}
