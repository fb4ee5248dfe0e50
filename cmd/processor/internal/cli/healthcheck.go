package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
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
		Long: `Healthcheck asks the admin address that FILE sets, or --url, whether the processor
is ready. It exits with 0 if it is, 3 if it is not, and 69 if nobody answers.`,
	}
	settings := Bind(cmd)
	byDefault := "http://" + config.Default().Admin.Listen
	address := cmd.Flags().String("url", byDefault, "`URL` of the admin address, instead of FILE's admin.listen")
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		url := *address
		if len(args) > 0 || settings.file != "" {
			if cmd.Flags().Changed("url") {
				return usage(cmd, errors.New("FILE and --url both name the address: give one"))
			}
			loaded, err := settings.Load(cmd, args)
			if err != nil {
				return err
			}
			url = "http://" + reachable(loaded.Config.Admin.Listen)
		}
		target, err := readyz(url)
		if err != nil {
			return usage(cmd, err)
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), *timeout)
		defer cancel()
		return askReady(ctx, target)
	}
	return cmd
}

// reachable is where to ask an address that a processor on this machine listens on:
// one that stands for all interfaces is asked on the loopback.
func reachable(listen string) string {
	host, port, err := net.SplitHostPort(listen)
	if err != nil { // validated before
		return listen
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "", err == nil && ip.IsUnspecified() && ip.Is4():
		host = "127.0.0.1"
	case err == nil && ip.IsUnspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
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
