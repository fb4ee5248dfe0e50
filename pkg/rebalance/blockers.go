package rebalance

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
)

// EndBlockers runs wait in a transaction and commits it. While wait waits for a lock,
// the backends that hold it are ended if their application_name begins with sessions.
// It returns those it ended and those that are not ours.
func EndBlockers(ctx context.Context, pool *pgxpool.Pool, sessions string, wait Wait) (ended, others []string, err error) {
	b := blockers{pool: pool, sessions: sessions, query: direct, waiter: make(chan int32, 1)}
	return b.endDuring(ctx, wait)
}

// EndStuck does so for a lock that healthy sessions queue up for. It looks through the
// whole queue, and ends only who waits for no lock and has stood still for longer than
// still.
func EndStuck(ctx context.Context, pool *pgxpool.Pool, sessions string, still time.Duration, wait Wait) (ended, others []string, err error) {
	b := blockers{pool: pool, sessions: sessions, query: throughQueue, args: []any{still.Milliseconds()}, waiter: make(chan int32, 1)}
	return b.endDuring(ctx, wait)
}

const (
	terminate = `SELECT a.pid, coalesce(a.application_name, ''), coalesce(a.state, ''),
			CASE WHEN pg_catalog.starts_with(a.application_name, $2) THEN pg_catalog.pg_terminate_backend(a.pid) ELSE false END
		FROM pg_catalog.pg_stat_activity a `
	direct = terminate + `WHERE a.pid = ANY (pg_catalog.pg_blocking_pids($1))`

	// A session that moves up in the queue has just begun its next statement. One of
	// another role does not show since when it stands.
	throughQueue = `WITH RECURSIVE behind (pid) AS (
			SELECT b.pid FROM pg_catalog.unnest(pg_catalog.pg_blocking_pids($1)) AS b (pid)
			UNION
			SELECT b.pid FROM behind CROSS JOIN LATERAL pg_catalog.unnest(pg_catalog.pg_blocking_pids(behind.pid)) AS b (pid)) ` +
		terminate + `JOIN behind ON behind.pid = a.pid
		WHERE a.wait_event_type IS DISTINCT FROM 'Lock' AND coalesce(a.state_change < pg_catalog.clock_timestamp() - $3 * interval '1 ms', true)`
)

// Wait is a transaction that waits for a lock: its settings, and what it does.
type Wait struct {
	Settings pgtx.Settings
	Do       func(context.Context, *pgtx.Tx) error
}

// blockers are the sessions that a waiter waits for.
type blockers struct {
	pool     *pgxpool.Pool
	sessions string
	query    string
	args     []any      // of the query, behind the waiter's pid and sessions
	waiter   chan int32 // the backend that waits, once it is known
	ended    []string
	others   []string
}

func (b *blockers) endDuring(ctx context.Context, wait Wait) (ended, others []string, err error) {
	waiter, err := b.pool.Acquire(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("control connection: %w", err)
	}
	defer waiter.Release()
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	var eg errgroup.Group
	eg.Go(func() error {
		defer cancel()
		_ = b.wait(watched, waiter.Conn(), wait) // whether it got the lock shows in the next attempt
		return nil
	})
	eg.Go(func() error {
		defer cancel()
		return b.end(ctx, watched.Done())
	})
	err = eg.Wait()
	return b.ended, b.others, err
}

// wait asks for the backend before it waits, in the same transaction: what the protocol
// calls its process id is the pooler's, where one stands between.
func (b *blockers) wait(ctx context.Context, conn *pgx.Conn, w Wait) error {
	var pid int32
	limited, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	tx, err := pgtx.Begin(limited, conn, w.Settings, pgtx.Statement{
		Step: pgtx.StepBegin, SQL: `SELECT pg_catalog.pg_backend_pid()`, Row: func(r pgtx.Row) error { return r.Scan(&pid) },
	})
	if err != nil {
		return err
	}
	b.waiter <- pid // never blocks: it is the only one
	if err := w.Do(ctx, tx); err != nil {
		tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

// end ends blockers of ours until the wait is over, or until one shows that is not
// ours. A question that was asked is read to its end: the wait is over as soon as a
// backend has ended, and that we ended it must be told all the same.
func (b *blockers) end(ctx context.Context, over <-chan struct{}) error {
	var waiter int32
	select {
	case <-over:
		return nil
	case waiter = <-b.waiter:
	}
	told := map[int32]bool{} // a backend needs a moment to end
	again := time.NewTicker(pace)
	defer again.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, attempt)
		err := b.endOnce(limited, waiter, told)
		cancel()
		if err != nil || len(b.others) > 0 {
			return err
		}
		select {
		case <-over:
			return nil
		case <-again.C:
		}
	}
}

func (b *blockers) endOnce(ctx context.Context, waiter int32, told map[int32]bool) error {
	rows, err := b.pool.Query(ctx, b.query, append([]any{pgx.QueryExecModeExec, waiter, b.sessions}, b.args...)...)
	if err != nil {
		return fmt.Errorf("blocking sessions: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var pid int32
		var app, state string
		var done bool
		if err := rows.Scan(&pid, &app, &state, &done); err != nil {
			return fmt.Errorf("blocking sessions: %w", err)
		}
		who := fmt.Sprintf("pid %d, %q, %s", pid, app, state)
		switch {
		case !done:
			b.others = append(b.others, who)
		case !told[pid]:
			told[pid] = true
			b.ended = append(b.ended, who)
		}
	}
	return rows.Err()
}
