package dedup

import (
	"context"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
)

// Clean removes some of what a log does not need any more: the fingerprints of runs
// that are sealed, and the blocks of dead segments. It returns the number of rows;
// call it again until that is 0. What is sealed and dead is read by the statement
// that removes: a member's memory may be of a time that the database has gone back
// behind.
func (s *Store) Clean(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, log int64) (int64, error) {
	return s.removed(ctx, conn, set,
		pgtx.Statement{SQL: s.sql(`WITH x AS (
				SELECT log, seq FROM @schema@.runs
				WHERE log = $1 AND seq <= (SELECT sealed FROM @schema@.logs WHERE id = $1) AND fingerprints IS NOT NULL
				ORDER BY seq LIMIT ` + strconv.Itoa(s.sizes.runs) + `),
			gone AS (UPDATE @schema@.runs r SET fingerprints = NULL FROM x WHERE r.log = x.log AND r.seq = x.seq RETURNING 1)
			SELECT count(*) FROM gone`), Params: []pgtx.Param{pgtx.Int8(log)}},
		pgtx.Statement{SQL: s.sql(`WITH x AS (
				SELECT b.segment, b.first FROM @schema@.segments s
				CROSS JOIN LATERAL (SELECT segment, first FROM @schema@.blocks WHERE segment = s.id ORDER BY first LIMIT $2) b
				WHERE s.log = $1 AND s.state = 'dead' LIMIT $2),
			gone AS (DELETE FROM @schema@.blocks b USING x WHERE b.segment = x.segment AND b.first = x.first RETURNING 1)
			SELECT count(*) FROM gone`), Params: []pgtx.Param{pgtx.Int8(log), pgtx.Int8(int64(s.sizes.clear))}},
		pgtx.Statement{SQL: s.sql(`WITH gone AS (DELETE FROM @schema@.segments s WHERE s.log = $1 AND s.state = 'dead'
				AND NOT EXISTS (SELECT FROM @schema@.blocks b WHERE b.segment = s.id) RETURNING 1)
			SELECT count(*) FROM gone`), Params: []pgtx.Param{pgtx.Int8(log)}})
}

// Sweep removes what builders left behind that were killed: segments that have been
// building for longer than age are given up (a living builder then begins again),
// and blocks whose segment is not there at all, as after a failover that lost the
// registration alone. Like Clean, call it until it returns 0, but once in minutes.
func (s *Store) Sweep(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, age time.Duration) (int64, error) {
	return s.removed(ctx, conn, set,
		pgtx.Statement{SQL: s.sql(`WITH gone AS (UPDATE @schema@.segments SET state = 'dead'
				WHERE state = 'building' AND created_at < now() - $1 * interval '1 ms' RETURNING 1)
			SELECT count(*) FROM gone`), Params: []pgtx.Param{pgtx.Int8(age.Milliseconds())}},
		// Goes from segment to segment through the index.
		pgtx.Statement{SQL: s.sql(`WITH RECURSIVE there AS (
				(SELECT segment FROM @schema@.blocks ORDER BY segment LIMIT 1)
				UNION ALL
				SELECT (SELECT b.segment FROM @schema@.blocks b WHERE b.segment > there.segment ORDER BY b.segment LIMIT 1)
				FROM there WHERE there.segment IS NOT NULL),
			x AS (SELECT b.segment, b.first FROM there
				CROSS JOIN LATERAL (SELECT segment, first FROM @schema@.blocks WHERE segment = there.segment ORDER BY first LIMIT $1) b
				WHERE NOT EXISTS (SELECT FROM @schema@.segments s WHERE s.id = there.segment) LIMIT $1),
			gone AS (DELETE FROM @schema@.blocks b USING x WHERE b.segment = x.segment AND b.first = x.first RETURNING 1)
			SELECT count(*) FROM gone`), Params: []pgtx.Param{pgtx.Int8(int64(s.sizes.clear))}})
}

// Prune deletes some audit rows of sealed runs that were committed longer ago than
// retention, and returns how many; call it again until that is 0. The run at sealed
// stays: it proves the head of a view that has nothing unsealed.
func (s *Store) Prune(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, log int64, retention time.Duration) (int64, error) {
	return s.removed(ctx, conn, set, pgtx.Statement{
		SQL: s.sql(`WITH x AS (
				SELECT log, seq, committed_at FROM @schema@.runs
				WHERE log = $1 AND seq < (SELECT sealed FROM @schema@.logs WHERE id = $1)
				ORDER BY seq LIMIT ` + strconv.Itoa(s.sizes.prune) + `),
			gone AS (DELETE FROM @schema@.runs r USING x WHERE r.log = x.log AND r.seq = x.seq
				AND x.committed_at < now() - $2 * interval '1 ms' RETURNING 1)
			SELECT count(*) FROM gone`),
		Params: []pgtx.Param{pgtx.Int8(log), pgtx.Int8(retention.Milliseconds())},
	})
}

// seek keeps the planner to indexes. A step removes a small part of what is there,
// and to read all of it looks cheaper where statistics are old or the part is large.
const seek = `SELECT pg_catalog.set_config('enable_seqscan', 'off', true), pg_catalog.set_config('enable_hashjoin', 'off', true),
	pg_catalog.set_config('enable_mergejoin', 'off', true), pg_catalog.set_config('enable_bitmapscan', 'off', true)`

// removed runs each statement in a transaction of its own and adds up their counts.
func (s *Store) removed(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, stmts ...pgtx.Statement) (int64, error) {
	total := int64(0)
	for _, stmt := range stmts {
		var n int64
		stmt.Step = pgtx.StepWrite
		stmt.Row = func(r pgtx.Row) error { return r.Scan(&n) }
		if err := pgtx.Once(ctx, conn, set, pgtx.Statement{Step: pgtx.StepBegin, SQL: seek}, stmt); err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// Closed returns the pipeline's closed logs: nobody has a view of them any more that
// would clean and prune them.
func (s *Store) Closed(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64) (logs []int64, err error) {
	err = pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT id FROM @schema@.logs WHERE pipeline = $1 AND state = 'closed' ORDER BY id`),
		Params: []pgtx.Param{pgtx.Int8(pipeline)},
		Row: func(r pgtx.Row) error {
			var id int64
			err := r.Scan(&id)
			logs = append(logs, id)
			return err
		},
	})
	return logs, err
}
