package processor

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

var errStillLocked = errors.New("position rows are still locked")

const watchEvery = 5 * time.Second

// watch compares memory with the database: every 5 s, and at once when a
// connection shows another timeline or system identifier. A database can go back
// (a lagging replica is promoted, a crash with asynchronous commit); an idle
// partition would otherwise never re-read its lost tail.
func (p *Processor) watch(ctx context.Context) error {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-p.suspicious:
		}
		limited, cancel := context.WithTimeout(ctx, watchEvery)
		err := p.compare(limited)
		cancel()
		if ctx.Err() == nil {
			p.watched(err)
		}
	}
}

// watched notes whether the database answered, and tells when it does again.
func (p *Processor) watched(err error) {
	silent := p.health.database(err)
	switch {
	case err != nil:
		p.logger.Warn().Err(err).Msg("database does not answer the watch")
	case silent > 0:
		p.logger.Info().Dur("took", silent).Msg("database answers again")
	}
}

// compare asks for the rows of every claim with nothing in flight, in one round
// trip. What moved on meanwhile is left to the fence.
func (p *Processor) compare(ctx context.Context) error {
	hs := p.list.quiet()
	parts, logs := make([]stream.Partition, len(hs)), make([]int64, len(hs))
	for i, h := range hs {
		parts[i], logs[i] = h.claim.Partition, h.log
	}
	rows := map[stream.Partition]offsets.Row{}
	heads := map[int64]stream.UUID{}
	err := p.withConn(ctx, p.control, func(conn *pgxpool.Conn) error {
		return pgtx.Once(ctx, conn.Conn(), pgtx.DefaultSettings,
			p.offsets.Read(p.pipeline.ID, parts, false, func(r offsets.Row) { rows[r.Partition] = r }),
			p.log.Heads(logs, func(log int64, head, _ stream.UUID) { heads[log] = head }))
	})
	if err != nil {
		return err
	}
	for _, h := range hs {
		row := rows[h.claim.Partition]
		differs := row.Next != h.claim.Next || row.Owner != h.claim.Owner
		if !differs && heads[h.log] == h.head || !p.list.unchanged(h) {
			continue
		}
		if !differs { // the log alone: catch up before the next batch
			p.list.suspectLog(h.q.scope)
			continue
		}
		p.about(h.claim).Warn().Int64("position", h.claim.Next).Int64("row", row.Next).
			Bool("other_owner", row.Owner != h.claim.Owner).Msg("memory and database differ")
		p.metrics.wentBack.Inc()
		p.group.Fenced(ctx, h.claim.Owner, row.Next < h.claim.Next)
	}
	return nil
}

// identify checks each new connection's server against the one known.
func (p *Processor) identify(ctx context.Context, conn *pgx.Conn) error {
	s, err := offsets.Identify(ctx, conn)
	if err != nil {
		return err
	}
	if old := p.server.Swap(&s); old != nil && *old != s {
		p.logger.Warn().Str("timeline", s.Timeline).Str("was", old.Timeline).Int64("system", s.SystemID).Msg("the database is another one than before")
		select {
		case p.suspicious <- struct{}{}:
		default:
		}
	}
	if p.pipeline.SystemID != 0 && s.SystemID != p.pipeline.SystemID {
		return errOtherCluster
	}
	return nil
}

var errOtherCluster = errors.New("connected to another Postgres cluster than the pipeline's")

// tell logs and counts what the group reports.
func (p *Processor) tell(e rebalance.Event) {
	if growth(e) {
		select {
		case p.grown <- struct{}{}:
		default:
		}
	}
	level := zerolog.InfoLevel
	switch e.Kind {
	case "stopped":
		level = zerolog.ErrorLevel
	case "takeover":
		p.metrics.takeovers.Inc()
	case "fenced":
		p.metrics.fenced.Inc()
		level = zerolog.WarnLevel
	case "accepted_loss":
		p.metrics.lost.WithLabelValues(e.Cause.Code).Add(float64(e.Cause.Lost.To - e.Cause.Lost.From))
		level = zerolog.WarnLevel
	case "ended_backend", "external_reset", "retry", "decided":
		level = zerolog.WarnLevel
	case "joined":
		p.joined(e.Protocol)
		return
	case "session_failed":
		p.logger.Warn().Err(e.Err).Msg("group session failed, joining again")
		return
	}
	with := p.logger.With().Str("topic", e.Name.Topic).Int32("partition", e.Name.Number)
	if e.Claim.Epoch > 0 {
		with = with.Int64("epoch", e.Claim.Epoch)
		if e.Kind != "released" { // what it was claimed at says nothing about where it ends
			with = with.Int64("offset", e.Claim.Next)
		}
	}
	if e.Cause.Code != "" {
		with = with.Str("cause", e.Cause.Code).Str("why", e.Cause.Text)
	}
	if e.Cause.Fix != "" {
		with = with.Str("fix", e.Cause.Fix)
	}
	if lost := e.Cause.Lost; lost.To > lost.From {
		with = with.Int64("lost_from", lost.From).Int64("lost_to", lost.To-1)
	}
	logger := with.Logger()
	logger.WithLevel(level).Err(e.Err).Msg(e.Kind)
}
