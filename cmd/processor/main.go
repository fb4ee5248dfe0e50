//go:build !windows

// Command processor moves the records of Kafka topics into Postgres, each
// business key exactly once.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/exit"
)

func main() { os.Exit(execute(os.Args[1:])) }

// execute is main with a result. The first SIGINT or SIGTERM ends the context, so
// that the verb can finish what it has begun; the second ends the process.
func execute(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)

	root := cli.Root(verbs()...)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, cli.Message(err))
	}
	return exit.Code(err)
}
