package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3/lock"
)

// ErrLocked says that something held a lock for longer than we wait: another
// migration, or a transaction on a table that a migration changes. Nothing was
// changed; end the other one or try again later.
var ErrLocked = errors.New("a lock was not free in time")

// explain tells a lock that was not free from other errors.
func explain(err error) error {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "55P03" {
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}

// tableLock lets one migration work at a time. It is a lock on the version table
// that conflicts with itself alone, held by an open transaction: a transaction
// pooler keeps that on one server connection, and the lock ends with the
// connection, so there is no lease to outlive. (Goose's own table lock cannot
// find a table whose schema needs quotes.)
type tableLock struct {
	statement string
	held      chan *sql.Tx // one transaction while locked
}

var _ lock.Locker = (*tableLock)(nil)

func newTableLock(schema string) *tableLock {
	return &tableLock{lockStatement(schema), make(chan *sql.Tx, 1)}
}

// lockStatement waits for at most one minute, then raises 55P03. The transaction
// is idle while migrations run on another connection.
func lockStatement(schema string) string {
	return "SET LOCAL lock_timeout = '60s'; SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; " +
		"LOCK TABLE " + versionTable(schema) + " IN SHARE UPDATE EXCLUSIVE MODE"
}

// Lock waits until no other migration is at work.
func (l *tableLock) Lock(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil) // it lives until Unlock, whatever happens to ctx
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	if _, err := tx.ExecContext(ctx, l.statement); err != nil {
		_ = tx.Rollback() // the first error is the one to tell
		return fmt.Errorf("wait for other migrations: %w", err)
	}
	l.held <- tx // never blocks: the server let us in after the one before us had left
	return nil
}

// Unlock lets the next one in.
func (l *tableLock) Unlock(context.Context, *sql.DB) error {
	_ = (<-l.held).Rollback() // if the session is lost, so is the lock
	return nil
}
