package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/exit"
)

// maxReason bounds how much of the answer is repeated.
const maxReason = 4 << 10

func healthcheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask a running processor whether it is ready: 0 yes, 3 no, 69 no answer",
		Args:  cobra.NoArgs,
	}
	address := cmd.Flags().String("url", "http://"+config.Default().Admin.Listen, "`URL` of the admin address")
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		target, err := readyz(*address)
		if err != nil {
			return usage(cmd, err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return askReady(ctx, target)
	}
	return cmd
}

// readyz turns the admin address into that of the question.
func readyz(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return "", errors.New("--url wants an address such as http://127.0.0.1:9464")
	}
	if strings.Trim(u.Path, "/") == "" {
		u.Path, u.RawQuery = "/readyz", "verbose"
	}
	return u.String(), nil
}

func askReady(ctx context.Context, target string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, http.NoBody)
	if err != nil {
		return fmt.Errorf("ask for readiness: %w", err)
	}
	// No proxy: the question is about this process, and an answer by a proxy
	// would be about the proxy.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return exit.With(exit.Unavailable, fmt.Errorf("no answer: %w", err))
	}
	defer resp.Body.Close() //nolint:errcheck // read as far as it is wanted
	reason, _ := io.ReadAll(io.LimitReader(resp.Body, maxReason))
	if resp.StatusCode != http.StatusOK {
		return exit.With(exit.Refused, fmt.Errorf("not ready: %s\n%s", resp.Status, strings.TrimSpace(string(reason))))
	}
	return nil
}
