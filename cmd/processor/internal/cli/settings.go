package cli

import (
	"errors"
	"os"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/config"
)

// Settings is how a verb that works on a pipeline takes its configuration:
// FILE or --config FILE, then --set and the flags that stand for a setting.
type Settings struct {
	file     string
	set      []string
	logLevel string
	logForm  string
}

// Bind adds the flags and the FILE argument to a verb, and returns where Load
// will find them.
func Bind(cmd *cobra.Command) *Settings {
	s := &Settings{}
	cmd.Use += " [FILE]"
	cmd.Args = cobra.MaximumNArgs(1)
	f := cmd.Flags()
	f.StringVarP(&s.file, "config", "c", "", "the pipeline's `FILE`, instead of the argument")
	f.StringArrayVar(&s.set, "set", nil, "set one value, as `kafka.group=orders`; stronger than file and environment")
	f.StringVar(&s.logLevel, "log-level", "", "trace, debug, info, warn or error")
	f.StringVar(&s.logForm, "log-format", "", "auto, json or console")
	cmd.ValidArgsFunction = completeYAML
	_ = cmd.RegisterFlagCompletionFunc("config", completeYAML) // the flag was added above
	_ = cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"trace", "debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp))
	_ = cmd.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"auto", "json", "console"}, cobra.ShellCompDirectiveNoFileComp))
	return s
}

func completeYAML(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
}

// Load reads the configuration. Its error carries the exit code already.
func (s *Settings) Load(cmd *cobra.Command, args []string) (*config.Loaded, error) {
	file := s.file
	switch {
	case len(args) == 1 && file != "":
		return nil, usage(cmd, errors.New("FILE and --config are the same thing: give one"))
	case len(args) == 1:
		file = args[0]
	case file == "":
		return nil, usage(cmd, errors.New("which pipeline? Give its FILE"))
	}
	var flags []config.Override
	for _, f := range []config.Override{
		{Path: "log.level", Value: s.logLevel, Flag: "--log-level"},
		{Path: "log.format", Value: s.logForm, Flag: "--log-format"},
	} {
		if f.Value != "" {
			flags = append(flags, f)
		}
	}
	return config.Load(config.Options{File: file, Environ: os.Environ(), Set: s.set, Flags: flags})
}
