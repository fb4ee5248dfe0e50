// Package dedupcmd shows, checks and mends what the dedup tables hold of a pipeline.
// Its verbs may be used while the pipeline runs.
package dedupcmd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"effectonce/cmd/processor/internal/cli"
	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
)

// Command is the verb dedup with its own verbs.
func Command() *cobra.Command {
	cmd := cli.Group("dedup", "Show, check and mend the key history of a pipeline")
	cmd.AddCommand(statsCommand(), checkCommand(), rebuildCommand())
	return cmd
}

// settings of every statement here: a page of blocks is read at once, or the table
// of runs is counted.
func settings() pgtx.Settings {
	return pgtx.Settings{Lock: 5 * time.Second, Statement: 10 * time.Minute, Idle: time.Minute}
}

// pipeline is what a verb works on.
type pipeline struct {
	pool   *pgx.ConnConfig
	conn   *pgx.Conn
	store  *dedup.Store
	schema string
	name   string
	id     int64
	topics map[[16]byte]string
}

// result is what a verb prints, as JSON or as a table, and what it found wrong.
type result interface {
	rows() [][]string
	err() error
}

// bind gives a verb its flags and makes it open the pipeline, do what it does, and
// print what came of it.
func bind(cmd *cobra.Command, do func(context.Context, *pipeline) (result, error)) *cobra.Command {
	s, out := cli.Bind(cmd), cli.BindOutput(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		asJSON, err := out.JSON(cmd)
		if err != nil {
			return err
		}
		loaded, err := s.Load(cmd, args)
		if err != nil {
			return err
		}
		res, err := opened(cmd.Context(), &loaded.Config, do)
		switch {
		case err != nil:
			return exit.With(code(err), err)
		case asJSON:
			err = cli.WriteJSON(cmd.OutOrStdout(), res)
		default:
			err = cli.WriteTable(cmd.OutOrStdout(), res.rows())
		}
		return errors.Join(err, res.err())
	}
	return cmd
}

// opened does something with the pipeline that a configuration names.
func opened(ctx context.Context, cfg *config.Config, do func(context.Context, *pipeline) (result, error)) (result, error) {
	pool, err := connect.Postgres(cfg.Postgres, cfg.Pipeline)
	if err != nil {
		return nil, exit.With(exit.Config, err)
	}
	p := &pipeline{pool: pool.ConnConfig, schema: cfg.Postgres.Schema, name: cfg.Pipeline, store: dedup.New(cfg.Postgres.Schema)}
	if p.conn, err = pgx.ConnectConfig(ctx, p.pool); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	defer func() { _ = p.conn.Close(context.WithoutCancel(ctx)) }() // nothing is open on it
	if err := p.find(ctx); err != nil {
		return nil, err
	}
	return do(ctx, p)
}

// find reads the pipeline's id and the names of its topics.
func (p *pipeline) find(ctx context.Context) error {
	p.topics = map[[16]byte]string{}
	sql := strings.NewReplacer("@schema@", pgx.Identifier{p.schema}.Sanitize()).Replace
	err := pgtx.Once(ctx, p.conn, settings(), pgtx.Statement{
		SQL:    sql(`SELECT id FROM @schema@.pipelines WHERE name = $1`),
		Params: []pgtx.Param{pgtx.Text(p.name)},
		Row:    func(r pgtx.Row) error { return r.Scan(&p.id) },
	}, pgtx.Statement{
		SQL: sql(`SELECT t.topic_id, t.name FROM @schema@.topics t JOIN @schema@.pipelines p ON p.id = t.pipeline
			WHERE p.name = $1`),
		Params: []pgtx.Param{pgtx.Text(p.name)},
		Row: func(r pgtx.Row) error {
			var id [16]byte
			var name string
			err := r.Scan(&id, &name)
			p.topics[id] = name
			return err
		},
	})
	switch c := pgtx.Code(err); {
	case c == "42P01", c == "3F000":
		return exit.With(exit.Refused, fmt.Errorf("schema %s has no tables of ours: processor migrate up", p.schema))
	case err != nil:
		return fmt.Errorf("read the pipeline: %w", err)
	case p.id == 0:
		return exit.With(exit.Refused, fmt.Errorf("pipeline %s has never started: it has no rows in schema %s", p.name, p.schema))
	}
	return nil
}

// topic is a log's topic by name. One that was deleted and created again has the
// same name and another id.
func (p *pipeline) topic(l *dedup.Standing) string {
	if name, ok := p.topics[l.Partition.Topic]; ok {
		return name
	}
	return l.Partition.Topic.String()
}

// scope is a log's as it is written on the command line: TOPIC/PARTITION, or TOPIC.
func (p *pipeline) scope(l *dedup.Standing) string {
	if l.Partition.Number == dedup.WholeTopic {
		return p.topic(l)
	}
	return fmt.Sprintf("%s/%d", p.topic(l), l.Partition.Number)
}

// code tells a database that is down from one that says no.
func code(err error) int {
	var dial *pgconn.ConnectError
	switch c := pgtx.Code(err); {
	case exit.Code(err) != exit.Failed:
		return exit.Code(err)
	case strings.HasPrefix(c, "28"), c == "3D000":
		return exit.Config
	case errors.As(err, &dial), strings.HasPrefix(c, "08"), strings.HasPrefix(c, "53"), strings.HasPrefix(c, "57"):
		return exit.Unavailable
	}
	return exit.Failed
}
