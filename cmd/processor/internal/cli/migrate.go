package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/migrations"
)

func migrateCommand() *cobra.Command {
	cmd := Group("migrate", "Create, change or show the program's own tables")
	cmd.AddCommand(migrateUpCommand(), migrateStatusCommand(), migrateDownCommand(), migrateSQLCommand())
	return cmd
}

const runtimeRole = "runtime-role"

func migrateUpCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring the schema up to date",
		Long: `Bring the schema up to date. It wants the owner's credentials. With --runtime-role
the role that runs pipelines is given what it needs on these tables, and no more;
repeat it after each migration.`,
	}
	settings := Bind(cmd)
	role := cmd.Flags().String(runtimeRole, "", "grant the `role` that runs pipelines what it needs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withMigrator(cmd, settings, args, func(ctx context.Context, m *migrations.Migrator, schema string) error {
			steps, err := m.Up(ctx)
			if printed := printSteps(cmd, "applied", steps); printed != nil || err != nil {
				return errors.Join(err, printed)
			}
			if len(steps) == 0 {
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "schema %s is up to date\n", schema); err != nil {
					return err
				}
			}
			if *role == "" {
				return nil
			}
			if err := m.Grant(ctx, *role); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "granted to role %s\n", *role)
			return err
		})
	}
	return cmd
}

func migrateDownCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Undo the newest migration, with all data it holds",
	}
	settings := Bind(cmd)
	yes := cmd.Flags().Bool("yes", false, "do it; without it the plan is printed")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withMigrator(cmd, settings, args, func(ctx context.Context, m *migrations.Migrator, schema string) error {
			newest, err := newestApplied(ctx, m)
			if err != nil {
				return err
			}
			if newest == nil {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "schema %s has no migration to undo\n", schema)
				return err
			}
			if !*yes {
				_, err := fmt.Fprintf(cmd.OutOrStdout(), "would undo %04d %s in schema %s and delete all data it holds\n", newest.Version, newest.Name, schema)
				return errors.Join(err, exit.With(exit.Refused, errors.New("nothing was done: add --yes to do it")))
			}
			steps, err := m.Down(ctx)
			return errors.Join(err, printSteps(cmd, "undone", steps))
		})
	}
	return cmd
}

// newestApplied is what Down would undo, or nil.
func newestApplied(ctx context.Context, m *migrations.Migrator) (*migrations.Status, error) {
	list, err := m.Status(ctx)
	if err != nil {
		return nil, err
	}
	var newest *migrations.Status
	for i := range list {
		if !list[i].Applied.IsZero() {
			newest = &list[i]
		}
	}
	return newest, nil
}

func migrateStatusCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "List the migrations: exit 3 if this binary cannot work with the schema"}
	settings, out := Bind(cmd), BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		return withMigrator(cmd, settings, args, func(ctx context.Context, m *migrations.Migrator, schema string) error {
			list, err := m.Status(ctx)
			if err != nil {
				return err
			}
			if err := printStatus(cmd, schema, list, asJSON); err != nil {
				return err
			}
			var outside *migrations.OutOfRangeError
			if err := m.Check(ctx); errors.As(err, &outside) {
				return exit.With(exit.Refused, err)
			} else if err != nil {
				return err
			}
			return nil
		})
	}
	return cmd
}

func printStatus(cmd *cobra.Command, schema string, list []migrations.Status, asJSON bool) error {
	type row struct {
		Version int64      `json:"version"`
		Name    string     `json:"name"`
		Applied *time.Time `json:"applied"`
	}
	rows := make([]row, len(list))
	table := [][]string{{"VERSION", "NAME", "APPLIED"}}
	for i, s := range list {
		rows[i] = row{Version: s.Version, Name: s.Name}
		applied, name := "pending", s.Name
		if !s.Applied.IsZero() {
			rows[i].Applied = &s.Applied
			applied = s.Applied.UTC().Format(time.RFC3339)
		}
		if name == "" {
			name = "(of a newer binary)"
		}
		table = append(table, []string{fmt.Sprintf("%04d", s.Version), name, applied})
	}
	if asJSON {
		lowest, highest := migrations.Range()
		return WriteJSON(cmd.OutOrStdout(), map[string]any{"schema": schema, "lowest": lowest, "highest": highest, "migrations": rows})
	}
	return WriteTable(cmd.OutOrStdout(), table)
}

func migrateSQLCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sql",
		Short: "Print what migrate up would do, as a script for psql; asks no database",
	}
	settings := Bind(cmd)
	from := cmd.Flags().Int64("from", 0, "the `version` the schema is at")
	role := cmd.Flags().String(runtimeRole, "", "also grant the `role` that runs pipelines what it needs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		loaded, err := settings.Load(cmd, args)
		if err != nil {
			return err
		}
		schema := loaded.Config.Postgres.Schema
		script, err := migrations.SQL(schema, *from)
		if err != nil {
			return err
		}
		if *role != "" {
			grants, err := migrations.GrantSQL(schema, *role)
			if err != nil {
				return err
			}
			script += grants
		}
		_, err = fmt.Fprint(cmd.OutOrStdout(), script)
		return err
	}
	return cmd
}

// withMigrator loads the settings, opens the schema they name, and closes it.
func withMigrator(cmd *cobra.Command, settings *Settings, args []string, do func(context.Context, *migrations.Migrator, string) error) error {
	loaded, err := settings.Load(cmd, args)
	if err != nil {
		return err
	}
	m, err := openMigrator(cmd.Context(), &loaded.Config)
	if err != nil {
		return err
	}
	return errors.Join(do(cmd.Context(), m, loaded.Config.Postgres.Schema), m.Close())
}

func openMigrator(ctx context.Context, c *config.Config) (*migrations.Migrator, error) {
	pool, err := connect.Postgres(c.Postgres, c.Pipeline)
	if err != nil {
		return nil, exit.With(exit.Config, fmt.Errorf("postgres: %w", err))
	}
	ctx, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	m, err := migrations.Open(ctx, pool.ConnConfig, c.Postgres.Schema)
	if err != nil {
		return nil, exit.With(postgresCode(err), fmt.Errorf("postgres: %w", err))
	}
	return m, nil
}

func printSteps(cmd *cobra.Command, done string, steps []migrations.Step) error {
	for _, s := range steps {
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %04d %s in %s\n", done, s.Version, s.Name, s.Took.Round(time.Millisecond)); err != nil {
			return err
		}
	}
	return nil
}
