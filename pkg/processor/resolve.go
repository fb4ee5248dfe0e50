package processor

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// resolve settles an unknown COMMIT: it reads the position rows under row locks,
// which wait for a server still committing. COMMIT is never sent again. When ctx
// ends first the batch is put back unsettled: had it been committed, the fence
// refuses it, and the partition is taken over where it stands.
func (c *committer) resolve(ctx context.Context, w *work, cause error) {
	rows, err := c.p.settled(ctx, w)
	for tries := 1; err != nil; tries++ {
		for _, p := range w.parts {
			c.p.say(p.q).Warn().Err(err).Msg("outcome of COMMIT is unknown and the database does not answer")
		}
		select {
		case <-ctx.Done():
			c.again(w, backoff(tries))
			return
		case <-time.After(backoff(tries)):
		}
		rows, err = c.p.settled(ctx, w)
	}
	for _, p := range w.parts {
		c.settle(ctx, p, rows[p.q.claim.Partition], cause)
	}
}

// settle acts on what the position row says about one part.
func (c *committer) settle(ctx context.Context, p *part, row offsets.Row, cause error) {
	claim := p.q.claim
	outcome := settlement(row, claim, p.to)
	c.p.metrics.unknown.WithLabelValues(outcome).Inc()
	c.p.say(p.q).Warn().Str("outcome", outcome).Err(cause).Msg("unknown COMMIT settled")
	switch outcome {
	case "committed":
		// It is done, but what memory would learn is read from the table.
		p.q.scope.stale = true
		c.p.metrics.committed(p.done)
		c.p.mark(p)
		c.tellDead(p)
		c.finish(p)
	case "rolled_back":
		c.p.list.again(p, 0)
	default:
		c.p.group.Fenced(ctx, claim.Owner, outcome == "went_back")
		c.p.list.release(p)
	}
}

// settlement names the outcome of an unknown COMMIT from the row read under a lock.
func settlement(row offsets.Row, claim stream.Claim, to int64) string {
	switch {
	case row.Owner != claim.Owner:
		return "fenced"
	case row.Next == to:
		return "committed"
	case row.Next == claim.Next:
		return "rolled_back"
	case row.Next < claim.Next:
		return "went_back"
	}
	return "fenced"
}

// settled reads the rows of w's partitions under row locks. A backend of ours that
// holds them for long is ended.
func (p *Processor) settled(ctx context.Context, w *work) (map[stream.Partition]offsets.Row, error) {
	ctx, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	parts := make([]stream.Partition, len(w.parts))
	for i, part := range w.parts {
		parts[i] = part.q.claim.Partition
	}
	set := pgtx.Settings{Lock: p.cfg.Grace, Statement: 2 * p.cfg.Grace, Idle: p.cfg.Grace}
	rows := map[stream.Partition]offsets.Row{}
	read := p.offsets.Read(p.pipeline.ID, parts, true, func(r offsets.Row) { rows[r.Partition] = r })
	err := p.withConn(ctx, p.control, func(conn *pgxpool.Conn) error { return pgtx.Once(ctx, conn.Conn(), set, read) })
	if pgtx.Code(err) != lockNotAvailable {
		return rows, err
	}
	ended, others, err := rebalance.EndBlockers(ctx, p.control, p.sessions, rebalance.Wait{Settings: set, Do: func(ctx context.Context, tx *pgtx.Tx) error {
		return tx.Run(ctx, read)
	}})
	p.logger.Warn().Strs("ended", ended).Strs("others", others).Err(err).Msg("position rows are locked by another session")
	if err == nil {
		err = errStillLocked
	}
	return nil, err
}

// freeLog ends a backend of ours that has held a topic's log for longer than the grace.
// A member whose way to Postgres is cut in the middle of its last statements leaves
// one behind that no timeout of the server ends. It stops every member, and as long
// as its own lives nobody takes over.
func (p *Processor) freeLog(ctx context.Context, s *scope) {
	ctx, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	set := pgtx.Settings{Lock: p.cfg.Grace, Statement: 2 * p.cfg.Grace, Idle: p.cfg.Grace}
	ended, others, err := rebalance.EndStuck(ctx, p.control, p.sessions, p.cfg.Grace, rebalance.Wait{Settings: set, Do: func(ctx context.Context, tx *pgtx.Tx) error {
		return tx.Run(ctx, p.log.Lock(s.view.Log))
	}})
	p.aboutScope(s).Warn().Strs("ended", ended).Strs("others", others).Err(err).Msg("the log is locked by another session")
}

const lockNotAvailable = "55P03"
