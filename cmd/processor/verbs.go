//go:build !windows

package main

import (
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/bench"
	"effectonce/cmd/processor/internal/dedupcmd"
	"effectonce/cmd/processor/internal/demo"
	"effectonce/cmd/processor/internal/naive"
	"effectonce/cmd/processor/internal/partitionscmd"
	"effectonce/cmd/processor/internal/pipelinecmd"
	"effectonce/cmd/processor/internal/produce"
	"effectonce/cmd/processor/internal/run"
	"effectonce/cmd/processor/internal/storm"
)

// verbs are the commands that live in packages of their own: one line each.
func verbs() []*cobra.Command {
	return append(demo.Commands(),
		bench.Command(storm.Command()),
		dedupcmd.Command(),
		partitionscmd.Command(),
		pipelinecmd.Command(),
		naive.Command(),
		produce.Command(),
		run.Command(),
	)
}
