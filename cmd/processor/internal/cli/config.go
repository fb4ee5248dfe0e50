package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/config"
)

func initCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "init",
		Short: "Print a commented configuration to begin with",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := cmd.OutOrStdout().Write(config.Sample())
			return err
		},
	}
}

func configCommand() *cobra.Command {
	cmd := Group("config", "Print the merged configuration, or its schema")
	cmd.AddCommand(configPrintCommand(), &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON schema of a configuration file, for editors",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			schema, err := config.Schema()
			if err != nil {
				return err
			}
			return WriteJSON(cmd.OutOrStdout(), schema)
		},
	})
	return cmd
}

func configPrintCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "print",
		Short: "Print the merged configuration, secrets masked, with where each value came from",
	}
	settings, out := Bind(cmd), BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		loaded, err := settings.Load(cmd, args)
		if err != nil {
			return err
		}
		if asJSON {
			return WriteJSON(cmd.OutOrStdout(), loaded.Printout())
		}
		text, err := loaded.YAML()
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s", text)
		return err
	}
	return cmd
}
