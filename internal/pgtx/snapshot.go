package pgtx

import (
	"context"

	"github.com/jackc/pgx/v5"
)

const snapshot = "BEGIN READ ONLY ISOLATION LEVEL REPEATABLE READ"

// Snapshot opens a transaction that only reads, all statements as of one moment.
// End it with Rollback, and soon: while it is open, no row that was changed since
// can be vacuumed.
func Snapshot(ctx context.Context, conn *pgx.Conn, s Settings) (*Tx, error) {
	tx := &Tx{conn: conn}
	if _, err := tx.pipeline(ctx, []Statement{{Step: StepBegin, SQL: snapshot}, s.statement()}); err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}
