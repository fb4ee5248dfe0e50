// Package cli is the frame of the program's verbs: the root command, what all
// verbs share (reading the configuration, output, usage errors), and the verbs
// that look, print or prepare. Verbs that move records have their own packages.
package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/exit"
)

// Root returns the root command with the verbs of this package and others.
// Its errors are neither printed nor turned into an exit code: that is left to
// main.
func Root(verbs ...*cobra.Command) *cobra.Command {
	root := Group("processor", "Every business key of a Kafka topic changes Postgres exactly once")
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(usage)
	root.AddCommand(validateCommand(), initCommand(), configCommand(), migrateCommand(), healthcheckCommand(), versionCommand())
	root.AddCommand(verbs...)
	strict(root)
	return root
}

// Message is how main prints an error: once, and whole.
func Message(err error) string {
	return "processor: " + err.Error()
}

// Group is a command that only holds others.
func Group(use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,

		SuggestionsMinimumDistance: 2,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				cmd.SetOut(cmd.ErrOrStderr())
				_ = cmd.Help()
				return usage(cmd, errors.New("which verb?"))
			}
			text := fmt.Sprintf("unknown verb %q", args[0])
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				text += ", did you mean " + strings.Join(near, " or ") + "?"
			}
			return usage(cmd, errors.New(text))
		},
	}
}

// strict makes wrong arguments of every verb a usage error.
func strict(cmd *cobra.Command) {
	if rule := cmd.Args; rule != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := rule(cmd, args); err != nil {
				return usage(cmd, err)
			}
			return nil
		}
	}
	for _, verb := range cmd.Commands() {
		strict(verb)
	}
}

// usage marks an error of the command line and says where the help is.
func usage(cmd *cobra.Command, err error) error {
	return exit.With(exit.UsageError, fmt.Errorf("%w (%s --help)", err, cmd.CommandPath()))
}
