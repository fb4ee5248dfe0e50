// Command keeper is the keeper of Postgres alone, for a test that wants it without
// the race detector: unpacking what is fetched takes ten times as long with it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"effectonce/cmd/processor/internal/embedded"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := embedded.ServePostgres(ctx, os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}
