package processor

import (
	"context"
	"encoding/json" //nolint:depguard // writes a decision's detail, never reads a record
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
)

// Home is where a pipeline lives: a Kafka cluster and a Postgres cluster.
type Home struct {
	Kafka    string `json:"kafka_cluster_id"`
	Postgres int64  `json:"postgres_system_identifier"`
}

// Adoption is what Adopt found: Home as the pipeline's row has it, and as connected.
type Adoption struct {
	Pipeline string `json:"pipeline"`
	From     Home   `json:"from"`
	To       Home   `json:"to"`
}

// Empty reports whether the pipeline is at home already.
func (a Adoption) Empty() bool { return a.From == a.To }

// ErrReason says that a decision needs a reason, which is written down with it.
var ErrReason = errors.New("a decision needs a reason")

// Adopt accepts the Kafka and Postgres clusters that cfg reaches as the pipeline's
// own, behind an upgrade, a restore or a move. It compares nothing: the caller vouches
// that positions, log and effects in this database are those of this topic. Without
// apply it only looks.
func Adopt(ctx context.Context, cfg Config, apply bool, reason string) (Adoption, error) {
	at, err := sit(ctx, cfg)
	if err != nil {
		return Adoption{}, err
	}
	defer at.leave(ctx)
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	cluster, _, err := rebalance.Find(limited, at.adm, at.cfg.Topics)
	if err != nil {
		return Adoption{}, fmt.Errorf("kafka: %w", err)
	}
	server, err := offsets.Identify(ctx, at.conn)
	if err != nil {
		return Adoption{}, fmt.Errorf("postgres: %w", err)
	}
	return adopt(ctx, at.conn, at.cfg, Home{cluster, server.SystemID}, apply, reason)
}

func adopt(ctx context.Context, conn *pgx.Conn, cfg Config, to Home, apply bool, reason string) (Adoption, error) {
	store := offsets.New(cfg.Schema)
	tx, err := pgtx.Begin(ctx, conn, waiting())
	if err != nil {
		return Adoption{}, err
	}
	row, err := store.Find(ctx, tx, cfg.Pipeline, apply)
	if err != nil {
		tx.Rollback(ctx)
		return Adoption{}, fmt.Errorf("pipeline %q: %w", cfg.Pipeline, err)
	}
	a := Adoption{Pipeline: cfg.Pipeline, From: Home{row.ClusterID, row.SystemID}, To: to}
	switch {
	case a.Empty(), !apply:
		tx.Rollback(ctx)
		return a, nil
	case reason == "":
		tx.Rollback(ctx)
		return a, ErrReason
	}
	detail, _ := json.Marshal(a) //nolint:errchkjson // strings and numbers: never fails
	if err = store.Adopt(ctx, tx, row.ID, to.Kafka, to.Postgres); err == nil {
		err = store.Decide(ctx, tx, row.ID, offsets.Decision{Kind: "adopt", Reason: reason, Detail: detail})
	}
	if err != nil {
		tx.Rollback(ctx)
		return a, err
	}
	return a, tx.Commit(ctx)
}
