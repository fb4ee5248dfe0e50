// Package partitionscmd shows where a pipeline's partitions are, and decides about
// those that stand still. Its verbs may be used while the pipeline runs.
package partitionscmd

import (
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
)

// Command is the verb partitions with its own verbs.
func Command() *cobra.Command {
	cmd := cli.Group("partitions", "Show where a pipeline's partitions are, and decide about those that stand still")
	cmd.AddCommand(lsCommand(), resolveCommand())
	return cmd
}
