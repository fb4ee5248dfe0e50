package sink

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Tx is the transaction as a handler may use it: pgx's methods without Commit,
// Rollback, Begin and Conn. It is not safe for concurrent use, and of no use
// after the handler returned.
//
// Statements are parsed unnamed and run in the extended protocol, one statement a
// call; no schema but pg_catalog is searched, so names are qualified; the time
// zone is UTC. An SQL text that would begin, end or divide the transaction is
// refused with ErrTransactionControl before it is sent.
type Tx struct{ s *session }

// Exec runs a statement; see [pgx.Conn.Exec].
func (tx Tx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	// pgx's own Exec takes the simple protocol when there are no arguments.
	rows, err := tx.s.query(ctx, sql, args)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rows.Close()
	return rows.CommandTag(), rows.Err()
}

// Query runs a statement that returns rows; see [pgx.Conn.Query]. Conn of the
// rows is nil.
func (tx Tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	return tx.s.query(ctx, sql, args)
}

// QueryRow runs a statement that returns at most one row; see [pgx.Conn.QueryRow].
func (tx Tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	r, _ := tx.s.query(ctx, sql, args) // the error is the rows' too
	return row{r}
}

// SendBatch sends the queued statements in one round trip; see
// [pgx.Conn.SendBatch]. The results must be closed.
func (tx Tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	return tx.s.sendBatch(ctx, b)
}

// CopyFrom streams rows into a table with COPY; see [pgx.Conn.CopyFrom].
func (tx Tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	return tx.s.copyFrom(ctx, table, columns, src)
}
