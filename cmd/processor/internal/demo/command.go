package demo

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/embedded"
	"effectonce/cmd/processor/internal/exit"
)

// childVerb runs another verb where the kernel does not tell a child of our end.
const childVerb = "demo-child"

// Commands returns the verb demo and the hidden verbs of its child processes.
func Commands() []*cobra.Command {
	hidden := func(use string, serve func(*cobra.Command) error) *cobra.Command {
		return &cobra.Command{Use: use, Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd) }}
	}
	return []*cobra.Command{
		command(),
		childCommand(),
		hidden(embedded.PostgresVerb, func(cmd *cobra.Command) error {
			return embedded.ServePostgres(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		}),
		hidden(embedded.KafkaVerb, func(cmd *cobra.Command) error {
			return embedded.ServeKafka(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		}),
	}
}

func command() *cobra.Command {
	o := Options{}
	var out *cli.Output
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See exactly-once survive kill -9, on private servers that are gone afterwards",
		Long: `Starts a private Kafka and a private Postgres in one temporary directory (an
installed Postgres if there is one, else one is fetched), sends orders of which
10 % are redelivered, and consumes them twice at the same time: with members of
"processor run", and with a naive at-least-once consumer. One process of each is
killed with -9 three times while it works. At the end both tables are counted.
Everything is removed when it ends.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return exit.With(exit.UsageError, err)
			}
			asJSON, err := out.JSON(cmd)
			if err != nil {
				return err
			}
			path, err := os.Executable()
			if err != nil {
				return fmt.Errorf("own binary: %w", err)
			}
			o.Binary, o.JSON = path, asJSON
			return Run(cmd.Context(), o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.Int64Var(&o.Records, "records", 500_000, "records to send")
	f.Int32Var(&o.Partitions, "partitions", 8, "partitions of the topic")
	f.IntVar(&o.Members, "members", 2, "processes of each consumer")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the orders and of the moments of the kills")
	f.BoolVar(&o.Keep, "keep", false, "leave everything running at the end, to look inside, until Ctrl-C")
	f.BoolVar(&o.Fetch, "fetch-postgres", false, "fetch Postgres even if one is installed")
	out = cli.BindOutput(cmd)
	return cmd
}

// childCommand runs another verb and ends it with its input: how a member learns
// that the demo is gone where the kernel does not tell it.
func childCommand() *cobra.Command {
	return &cobra.Command{
		Use: childVerb, Hidden: true, DisableFlagParsing: true, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := embedded.UntilEOF(cmd.Context(), cmd.InOrStdin())
			defer cancel()
			root := cmd.Root()
			root.SetArgs(args)
			return root.ExecuteContext(ctx)
		},
	}
}
