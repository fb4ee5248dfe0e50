package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/twmb/franz-go/pkg/sasl/oauth"
)

// tokenCap is the longest token, in bytes; brokers refuse far shorter ones.
const tokenCap = 64 << 10

var errToken = errors.New("is not a bearer token: wants one line of visible ASCII, at most 64KiB")

// fileToken reads the token at every authentication.
func fileToken(path string) func(context.Context) (oauth.Auth, error) {
	return func(context.Context) (oauth.Auth, error) {
		file, err := os.Open(path)
		if err != nil {
			return oauth.Auth{}, fmt.Errorf("token file: %w", err)
		}
		defer func() { _ = file.Close() }() // only read
		text, err := io.ReadAll(io.LimitReader(file, tokenCap+2))
		if err != nil {
			return oauth.Auth{}, fmt.Errorf("token file: %w", err)
		}
		auth, err := bearer(strings.TrimSpace(string(text)))
		if err != nil {
			return oauth.Auth{}, fmt.Errorf("token file %s %w", path, err)
		}
		return auth, nil
	}
}

// bearer refuses what would break out of the token's place in the exchange.
func bearer(token string) (oauth.Auth, error) {
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if token == "" || len(token) > tokenCap || strings.ContainsFunc(token, invisible) {
		return oauth.Auth{}, errToken
	}
	return oauth.Auth{Token: token}, nil
}
