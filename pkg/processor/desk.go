package processor

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// desk is what an operator's verb works with, beside the members: the configuration
// with its defaults, and a connection to each side.
type desk struct {
	cfg  Config
	adm  *kadm.Client
	conn *pgx.Conn
}

// sit checks the configuration and connects. Kafka is not asked anything yet.
func sit(ctx context.Context, cfg Config) (*desk, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	client, err := kgo.NewClient(cfg.Kafka...)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	conn, err := pgx.ConnectConfig(ctx, cfg.Postgres.ConnConfig.Copy())
	if err != nil {
		client.Close()
		return nil, fmt.Errorf("postgres: %w", err)
	}
	return &desk{cfg, kadm.NewClient(client), conn}, nil
}

// leave gives both connections back. What was done is committed or undone.
func (d *desk) leave(ctx context.Context) {
	_ = d.conn.Close(context.WithoutCancel(ctx))
	d.adm.Close()
}
