package demo

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// ours reads how far `processor run` is from its own tables.
type ours struct{ db *pgxpool.Pool }

// progress is the sum of the positions: each is the next offset to apply.
func (o ours) progress(ctx context.Context) (int64, error) {
	var at int64
	err := o.db.QueryRow(ctx, `SELECT coalesce(sum(next_offset), 0)::bigint FROM effectonce.positions`).Scan(&at)
	return at, err
}

// working: a commit of a claim of the process is in the audit trail.
func (o ours) working(ctx context.Context, pid int) (bool, error) {
	var working bool
	err := o.db.QueryRow(ctx, `
		SELECT EXISTS (
			SELECT FROM effectonce.positions p
			JOIN effectonce.audit a ON a.topic_id = p.topic_id AND a.partition = p.partition AND a.owner = p.owner
			WHERE p.holder ~ format('\m%s\M', $1::bigint))`, pid).Scan(&working)
	return working, err
}
