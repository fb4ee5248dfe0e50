package processor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
	"effectonce/pkg/decode"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// Processor is one running pipeline.
type Processor struct {
	cfg      Config
	pipeline offsets.Pipeline
	topics   map[string]rebalance.Topic
	plan     *decode.Plan
	width    int // values a record: columns, then key parts
	keyAt    int // where the key parts begin
	settings pgtx.Settings
	sessions string // prefix of application_name of this pipeline's sessions

	control, commits, background *pgxpool.Pool // three budgets: none starves another
	client                       *kgo.Client
	left                         bool // the group
	offsets                      *offsets.Store
	log                          *dedup.Store
	sink                         sink.Sink
	group                        *rebalance.Group
	list                         *list
	loop                         *loop

	server     atomic.Pointer[offsets.Server]
	suspicious chan struct{} // a connection showed another server
	grown      chan struct{} // a partition stopped as it does when its topic grew

	logger   zerolog.Logger
	metrics  *metrics
	health   *health
	tails    *tails
	watchdog *watchdog
}

// ErrConfig says that the configuration does not fit the table, the topic or
// itself: change it, waiting does not help.
var ErrConfig = errors.New("configuration")

// Run runs the pipeline until ctx ends: it connects (trying again while a
// dependency is down), takes part in the group, and on the end of ctx finishes
// what is in flight and leaves. An error is one that waiting does not mend.
func Run(ctx context.Context, cfg Config) error {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	a, err := listenAdmin(ctx, cfg)
	if err != nil {
		return err
	}
	cfg.metrics, cfg.rebuilds = newMetrics(), &rebuilds{}
	defer register(cfg.Registry, append(cfg.metrics.all(), &standingsCollector{a}, &cacheCollector{a})...)()
	eg, ectx := errgroup.WithContext(ctx)
	eg.Go(func() error { return a.serve(ectx) })
	eg.Go(func() error { return openAndRun(ectx, cfg, a) })
	return eg.Wait()
}

// openAndRun opens the pipeline and runs it, again whenever one of its topics was
// widened or its client stands still.
func openAndRun(ctx context.Context, cfg Config, a *admin) error {
	for {
		p, err := openPatiently(ctx, cfg, a)
		if ctx.Err() != nil && p == nil {
			return nil // told to stop before it began
		}
		if err != nil {
			return err
		}
		a.opened(p)
		err = p.run(ctx)
		p.close(ctx)
		p.logger.Info().Msg("stopped, left the group")
		if !errors.Is(err, errReopen) && !errors.Is(err, errStalled) {
			return err
		}
		a.reopens(err)
		p.logger.Warn().Err(err).Msg("opening again")
	}
}

// run holds three lifetimes: fetching ends with ctx, or when the pipeline is to be
// opened again; work on views ends with fetching, whatever is left of it, since it may
// take minutes; work in flight is finished.
func (p *Processor) run(ctx context.Context) error {
	inflight, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	views, endViews := context.WithCancel(ctx)
	defer endViews()
	var work errgroup.Group
	for range p.cfg.Committers {
		c := p.newCommitter()
		work.Go(func() error { return c.run(inflight) })
	}
	for range loaders {
		work.Go(func() error { return p.loadViews(views) })
	}
	for range keepers {
		work.Go(func() error { return p.tend(views) })
	}

	fetch, fctx := errgroup.WithContext(ctx)
	fetch.Go(func() error { return p.loop.run(fctx) })
	fetch.Go(func() error { return p.group.Run(fctx) })
	fetch.Go(func() error { return p.watch(fctx) })
	fetch.Go(func() error { return p.grow(fctx) })
	fetch.Go(func() error { return p.measure(fctx) })
	fetch.Go(func() error { return p.sweep(fctx) })
	fetch.Go(func() error { return p.age(fctx) })
	err := fetch.Wait()

	p.logger.Info().Msg("draining: leaving the group, finishing what is in flight")
	// What is cut off when the time is over is there or it is not: the next owner begins
	// at the position.
	grace := time.AfterFunc(p.cfg.DrainTime, end)
	defer grace.Stop()
	endViews()
	p.leave(ctx)
	p.list.close()
	return errors.Join(err, p.landed(&work, inflight))
}

// landed waits until all work has ended: at most as long as ctx, and a moment in which
// what is cut off returns. A handler that does not return is left behind, with its
// connection.
func (p *Processor) landed(work *errgroup.Group, ctx context.Context) error { //nolint:revive // ctx is what is waited for
	done := make(chan error, 1)
	go func() { done <- work.Wait() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(cutOff):
		return errLeftBehind
	}
}

var errLeftBehind = errors.New("a batch did not come back: a handler that does not return was left behind")

// cutOff is how long what is cut off may take to return, and to be closed.
const cutOff = time.Second

// leaving bounds the mirror's last commit: lag tools can wait, a shutdown cannot.
const leaving = 2 * time.Second

// close leaves the group, if that is yet to be done, and gives the connections back:
// those that a server does not answer or a handler does not return go later. ctx may
// be over.
func (p *Processor) close(ctx context.Context) {
	p.leave(ctx)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		for _, pool := range []*pgxpool.Pool{p.control, p.commits, p.background} {
			if pool != nil {
				pool.Close()
			}
		}
	}()
	select {
	case <-closed:
	case <-time.After(cutOff):
	}
}

// withConn runs f on a connection of the pool.
func (p *Processor) withConn(ctx context.Context, pool *pgxpool.Pool, f func(*pgxpool.Conn) error) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connection: %w", err)
	}
	defer conn.Release()
	return f(conn)
}

// say is the logger with a partition's keys, for whoever has the queue in flight.
func (p *Processor) say(q *queue) *zerolog.Logger { return p.about(q.claim) }

// about is the logger with a claim's keys.
func (p *Processor) about(c stream.Claim) *zerolog.Logger {
	l := p.logger.With().Str("topic", c.TopicName).Int32("partition", c.Partition.Number).Int64("epoch", c.Epoch).
		Int64("offset", c.Next).Logger()
	return &l
}

// aboutScope is the logger with a scope's keys.
func (p *Processor) aboutScope(s *scope) *zerolog.Logger {
	with := p.logger.With().Str("topic", s.topic)
	if !s.shared() {
		with = with.Int32("partition", s.name.Number)
	}
	l := with.Logger()
	return &l
}

// loaders is how many views are loaded at once.
const loaders = 2

// loadViews loads the views of new claims until the list is closed.
func (p *Processor) loadViews(ctx context.Context) error {
	for s := p.list.takeLoad(); s != nil; s = p.list.takeLoad() {
		p.loadView(ctx, s)
	}
	return nil
}

// loadView brings a scope's view up to its log, or loads it. What it was before is
// used as far as the log proves it.
func (p *Processor) loadView(ctx context.Context, s *scope) {
	start, old, v := time.Now(), s.view, s.view
	err := p.withConn(ctx, p.background, func(conn *pgxpool.Conn) (err error) {
		if old != nil && p.log.CatchUp(ctx, conn.Conn(), p.settings, p.pipeline.ID, s.name, old) == nil {
			return nil
		}
		v, err = p.log.Load(ctx, conn.Conn(), p.settings, p.pipeline.ID, s.name, old)
		return err
	})
	if err == nil && !bytes.Equal(v.Generation, p.topics[s.topic].Generation) {
		err = dedup.ErrLogClosed // ours is; this is the log of another generation
	}
	if err == nil {
		if v != old {
			st := v.Stats()
			p.aboutScope(s).Info().Int("keys", st.Keys).Int64("sealed", st.Sealed).Dur("took", time.Since(start)).Msg("view loaded")
		}
		p.list.loaded(s, v)
		return
	}
	switch {
	case errors.Is(err, dedup.ErrLogClosed):
		for _, claim := range p.list.claims(s) {
			p.group.Fenced(ctx, claim.Owner, true)
		}
	case errors.Is(err, dedup.ErrDamaged):
		p.stopScope(s, damaged(err))
	case errors.Is(err, dedup.ErrNoLog), errors.Is(err, dedup.ErrDropView):
		p.stopScope(s, rebalance.Cause{
			Code: "no_log", Text: err.Error(), Fix: "the database is not the one this pipeline wrote, or its runs were deleted by hand",
		})
	case ctx.Err() == nil:
		p.aboutScope(s).Warn().Err(err).Msg("view not loaded, trying again")
	}
	p.list.notLoaded(s, backoff(4))
}

// stopScope stops all partitions held under a scope.
func (p *Processor) stopScope(s *scope, c rebalance.Cause) {
	for _, claim := range p.list.claims(s) {
		p.group.Stop(claim, c)
	}
}
