package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// errReopen ends a run whose topics mean something else now that this configuration
// accepts: the pipeline is opened again, in the same process.
var errReopen = errors.New("a topic was widened")

// growEvery is how often a stopped partition is looked at again, in case it is a
// growth that a broker did not know of yet, or that could not be acted on.
const growEvery = 10 * time.Second

// growth is what a topic that grew looks like, to the member that meets it and to one
// whose claims another member has taken away by widening.
func growth(e rebalance.Event) bool {
	return e.Kind == "stopped" && (e.Cause.Code == "growth" || e.Cause.Code == "partitioner" || e.Cause.Code == "generation")
}

// grow widens topics that grew, if that is what is configured, until ctx ends or the
// pipeline is to be opened again. Until then what stopped stays stopped.
func (p *Processor) grow(ctx context.Context) error {
	if p.cfg.OnGrowth != GrowthWiden {
		return nil
	}
	tick := time.NewTicker(growEvery)
	defer tick.Stop()
	for stopped := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-p.grown:
			stopped = true
		case <-tick.C:
		}
		if !stopped {
			continue
		}
		limited, cancel := context.WithTimeout(ctx, p.cfg.BatchTime)
		err := p.regrow(limited)
		cancel()
		switch {
		case errors.Is(err, errReopen):
			return err
		case err != nil && ctx.Err() == nil:
			p.logger.Warn().Err(err).Msg("growth not settled, trying again")
		}
	}
}

// regrow compares the topics' rows with what this run works with, then Kafka's
// partitions with the rows, and widens the topics that grew. errReopen says that a
// row is another now, by this member or another one, and one this configuration
// accepts. A row that it does not accept is somebody's decision: the partitions stay
// stopped.
func (p *Processor) regrow(ctx context.Context) error {
	rows, err := p.rows(ctx)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if !bytes.Equal(row.Generation, p.topics[row.Name].Generation) && p.cfg.accepts(row) {
			return fmt.Errorf("%w: %s", errReopen, row.Name)
		}
	}
	adm := kadm.NewClient(p.client)
	_, found, err := rebalance.Find(ctx, adm, p.cfg.Topics)
	if err != nil {
		return err
	}
	for _, row := range rows {
		t := found[row.Name]
		grew := t.ID == row.ID && t.Partitions > row.Partitions
		if !grew || row.Scope != stream.ScopePartition || !p.cfg.accepts(row) {
			continue
		}
		c := change{row: row, rule: p.cfg.rule(), scope: stream.ScopeTopic, count: t.Partitions, keep: true}
		if c.starts, err = rebalance.FirstOffsets(ctx, adm, row.Name, row.Partitions, t.Partitions); err != nil {
			return err
		}
		err := p.widen(ctx, c)
		if err != nil && pgtx.Code(err) != pgtx.CodeChanged {
			return err
		}
		return p.regrow(ctx) // its row says what became of it
	}
	return nil
}

// rows returns those of the topics this run works with.
func (p *Processor) rows(ctx context.Context) (rows []offsets.Topic, err error) {
	err = p.withConn(ctx, p.control, func(conn *pgxpool.Conn) error {
		tx, err := pgtx.Begin(ctx, conn.Conn(), pgtx.DefaultSettings)
		if err != nil {
			return err
		}
		defer tx.Rollback(ctx)
		all, err := p.offsets.Topics(ctx, tx, p.pipeline.ID, p.cfg.Topics)
		for _, row := range all {
			if row.ID == p.topics[row.Name].ID {
				rows = append(rows, row)
			}
		}
		return err
	})
	return rows, err
}

// widen carries the change out. A backend of ours that holds a position for long is
// ended, as in a takeover: it is fenced by the change in any case. One that widens is
// not: a log with many runs takes longer than the grace, and two members would end
// each other for ever. It goes by another name, and ends by itself: it copies nothing,
// so the server's time limits hold.
func (p *Processor) widen(ctx context.Context, c change) error {
	set := pgtx.Settings{Lock: p.cfg.Grace, Statement: time.Minute, Idle: reach}
	try := func(ctx context.Context, tx *pgtx.Tx) error {
		if err := tx.Run(ctx, unlisted); err != nil {
			return err
		}
		s := stores{p.offsets, p.log}
		return s.change(ctx, tx, p.pipeline.ID, []change{c}, "the topic grew")
	}
	err := p.withConn(ctx, p.control, func(conn *pgxpool.Conn) error {
		return pgtx.Do(ctx, conn.Conn(), set, func(tx *pgtx.Tx) error { return try(ctx, tx) })
	})
	if pgtx.Code(err) != lockNotAvailable {
		return err
	}
	ended, others, err := rebalance.EndBlockers(ctx, p.control, p.sessions, rebalance.Wait{Settings: set, Do: try})
	p.logger.Warn().Strs("ended", ended).Strs("others", others).Err(err).Msg("position rows are locked by another session")
	if err == nil {
		err = errStillLocked
	}
	return err
}

// unlisted has a transaction's session go by a name that no member ends.
var unlisted = pgtx.Statement{Step: pgtx.StepBegin, SQL: "SET LOCAL application_name = 'effectonce widens a topic'"}
