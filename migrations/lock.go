package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/pressly/goose/v3/lock"
)

// ErrLocked says that something held a lock for longer than we wait: another
// migration (one minute), or a transaction on a table that a migration changes
// (five seconds). The migration at hand changed nothing; end the other one or try
// again later.
var ErrLocked = errors.New("a lock was not free in time")

// explain tells a lock that was not free from other errors.
func explain(err error) error {
	if lockNotFree(err) && !errors.Is(err, ErrLocked) {
		return fmt.Errorf("%w: %w", ErrLocked, err)
	}
	return err
}

func lockNotFree(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// tableLock lets one migration work at a time. It is a lock on the version table
// that conflicts with itself alone, held by an open transaction: a transaction
// pooler keeps that on one server connection, and the lock ends with the
// connection, so there is no lease to outlive. (Goose's own table lock cannot
// find a table whose schema needs quotes.)
type tableLock struct {
	statement string
	wait      time.Duration // for other migrations
	again     time.Duration // between two attempts
	held      chan *sql.Tx  // one transaction while locked
}

var _ lock.Locker = (*tableLock)(nil)

// newTableLock sets what the transaction needs while it is idle: migrations run on
// another connection.
func newTableLock(schema string) *tableLock {
	statement := "SET LOCAL statement_timeout = 0; SET LOCAL idle_in_transaction_session_timeout = 0; " +
		"LOCK TABLE " + versionTable(schema) + " IN SHARE UPDATE EXCLUSIVE MODE NOWAIT"
	return &tableLock{statement, time.Minute, 200 * time.Millisecond, make(chan *sql.Tx, 1)}
}

// Lock waits until no other migration is at work.
func (l *tableLock) Lock(ctx context.Context, db *sql.DB) error {
	tx, err := l.begin(ctx, db)
	if err != nil {
		return err
	}
	l.held <- tx // never blocks: the server let us in after the one before us had left
	return nil
}

// Unlock lets the next one in.
func (l *tableLock) Unlock(context.Context, *sql.DB) error {
	_ = (<-l.held).Rollback() // if the session is lost, so is the lock
	return nil
}

// begin returns a transaction that holds the lock. It asks again and again instead
// of waiting in the server: behind a small pool, those who wait would keep the
// connection that the one at work needs.
func (l *tableLock) begin(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	deadline := time.After(l.wait)
	for {
		tx, err := l.try(ctx, db)
		if err == nil {
			return tx, nil
		}
		if !lockNotFree(err) {
			return nil, fmt.Errorf("lock migrations: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another migration: %w", ctx.Err())
		case <-deadline:
			return nil, fmt.Errorf("wait for another migration: %w: %w", ErrLocked, err)
		case <-time.After(l.again):
		}
	}
}

func (l *tableLock) try(ctx context.Context, db *sql.DB) (*sql.Tx, error) {
	tx, err := db.BeginTx(context.WithoutCancel(ctx), nil) // it lives until Unlock, whatever happens to ctx
	if err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, l.statement); err != nil {
		_ = tx.Rollback() // the first error is the one to tell
		return nil, err
	}
	return tx, nil
}
