// Package bench measures the pipeline on a real Kafka and a real Postgres, against
// what the same two could do without it. A figure is a ratio of interleaved runs on
// one machine; absolute numbers belong to the machine.
package bench

import (
	"os"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
)

// Command is the verb bench with its measurements, and others.
func Command(others ...*cobra.Command) *cobra.Command {
	cmd := cli.Group("bench", "Measure the pipeline against a plain consumer")
	cmd.AddCommand(throughputCommand(), dedupCommand())
	cmd.AddCommand(others...)
	return cmd
}

// Target is where a measurement runs. Both servers are on this machine.
type Target struct {
	Brokers []string
	DSN     string // of a role that may create schemas
}

// Bind adds the flags --brokers and --dsn.
func (t *Target) Bind(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&t.Brokers, "brokers", []string{or(os.Getenv("EFFECTONCE_TEST_KAFKA"), "127.0.0.1:9092")}, "seed brokers")
	f.StringVar(&t.DSN, "dsn", or(os.Getenv("EFFECTONCE_TEST_POSTGRES"), "postgres://postgres@127.0.0.1:5432/postgres"),
		"connection string of a role that may create schemas")
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
