package processor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/plugin/kzerolog"

	"effectonce/internal/pgtx"
	"effectonce/migrations"
	"effectonce/pkg/decode"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// reach bounds one attempt to reach a dependency.
const reach = 10 * time.Second

// openPatiently opens the pipeline, trying again while a dependency is down. When
// ctx ends first, its error is returned.
func openPatiently(ctx context.Context, cfg Config, a *admin) (*Processor, error) {
	for tries := 1; ; tries++ {
		p, err := open(ctx, cfg)
		if err == nil || !transient(err) {
			return p, err
		}
		wait := backoff(tries + 3)
		a.waits(err)
		cfg.Logger.Warn().Err(err).Dur("wait", wait).Msg("a dependency is down, trying again")
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// transient reports whether waiting may mend an error of opening.
func transient(err error) bool {
	code := pgtx.Code(err)
	if strings.HasPrefix(code, "28") { // at the start it is the configuration's fault
		return false
	}
	if code != "" {
		return verdict(stepOf(err), err) == Retry
	}
	var dial *pgconn.ConnectError
	var network net.Error
	return errors.Is(err, rebalance.ErrGroupBusy) || errors.As(err, &dial) || errors.As(err, &network) || kerr.IsRetriable(err) || kgo.IsRetryableBrokerErr(err) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, kgo.ErrClientClosed)
}

// open reaches both dependencies, checks what must hold, registers the pipeline
// and joins the group.
func open(ctx context.Context, cfg Config) (_ *Processor, err error) {
	p := &Processor{
		cfg: cfg, settings: pgtx.DefaultSettings, logger: cfg.Logger, health: newHealth(), tails: newTails(), watchdog: &watchdog{},
		offsets: offsets.New(cfg.Schema), log: dedup.New(cfg.Schema).Cached(cfg.Cache),
		list:       newList(cfg.BatchRecords, cfg.BatchBytes, cfg.Inflight),
		suspicious: make(chan struct{}, 1), grown: make(chan struct{}, 1), metrics: cfg.metrics,
	}
	p.loop = &loop{p: p, wake: func() {}}
	p.list.committers, p.list.linger = cfg.Committers, cfg.BatchLinger
	p.list.memory = cfg.DedupMemory / 2 // the other half is the filters'
	p.list.ages = cfg.DedupRetention > 0
	defer func() {
		if err != nil {
			p.close(ctx)
		}
	}()
	sources, err := cfg.sources()
	if err != nil {
		return nil, err
	}
	if p.plan, err = decode.New(sources, decode.Limits{}); err != nil {
		return nil, err
	}
	p.width, p.keyAt = len(sources), len(sources)-len(cfg.Key)

	limited, cancel := context.WithTimeout(ctx, 3*reach)
	defer cancel()
	if err = p.openDatabase(limited); err != nil {
		return nil, fmt.Errorf("postgres %s:%d: %w", cfg.Postgres.ConnConfig.Host, cfg.Postgres.ConnConfig.Port, err)
	}
	if err = p.openKafka(limited); err != nil {
		return nil, err
	}
	return p, nil
}

// openDatabase checks server and schema and opens the sink.
func (p *Processor) openDatabase(ctx context.Context) error {
	m, err := migrations.Open(ctx, p.cfg.Postgres.ConnConfig, p.cfg.Schema)
	if err != nil {
		return err
	}
	err = m.Check(ctx)
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, p.cfg.Postgres.ConnConfig.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // a check's connection
	s, err := offsets.Identify(ctx, conn)
	if err != nil {
		return err
	}
	p.server.Store(&s)
	return p.openSink(ctx, conn)
}

func (p *Processor) openSink(ctx context.Context, conn *pgx.Conn) error {
	if p.cfg.Handler != nil {
		p.sink = sink.NewHandler(p.cfg.Handler, p.cfg.HandlerTimeout)
		return nil
	}
	t, err := sink.OpenTable(ctx, conn, p.cfg.Table.config())
	if err != nil && transient(err) {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrConfig, err)
	}
	p.sink = t
	return nil
}

func (t *Table) config() sink.TableConfig {
	c := sink.TableConfig{Schema: t.Schema, Name: t.Name, Mode: t.Mode, Conflict: t.Conflict}
	for i, col := range t.Columns {
		c.Columns = append(c.Columns, sink.Column{Name: col.Name, Source: i, SourceName: col.Source})
	}
	return c
}

// openKafka finds the topics, registers the pipeline with rows for all of their
// partitions, and joins the group.
func (p *Processor) openKafka(ctx context.Context) error {
	finder, err := kgo.NewClient(p.cfg.Kafka...)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer finder.Close()
	adm := kadm.NewClient(finder)
	limited, cancel := context.WithTimeout(ctx, reach)
	defer cancel()
	cluster, topics, err := rebalance.Find(limited, adm, p.cfg.Topics)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	p.topics = topics
	if err := p.checkRetention(limited, adm); err != nil {
		return err
	}
	if err := p.register(ctx, adm, cluster); err != nil {
		return fmt.Errorf("pipeline %q: %w", p.cfg.Pipeline, err)
	}
	if err := p.openPools(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	p.list.shared = map[string]bool{}
	for _, t := range p.topics {
		p.list.shared[t.Name] = t.Scope == stream.ScopeTopic
	}
	if err := p.join(ctx); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	return nil
}

// register writes the pipeline's, topics', positions' and logs' rows that are not
// there yet, in one transaction, and checks those that are.
func (p *Processor) register(ctx context.Context, adm *kadm.Client, cluster string) error {
	want := offsets.Pipeline{
		Name: p.cfg.Pipeline, Generation: p.cfg.generation(p.cfg.Scope, 0), Group: p.cfg.Group, ClusterID: cluster,
		SystemID: p.server.Load().SystemID, Settings: p.cfg.rule().text(),
	}
	if t, ok := p.sink.(*sink.Table); ok {
		want.SinkTables = t.Tables()
	}
	_, _ = rand.Read(want.Salt[:]) // never fails
	conn, err := pgx.ConnectConfig(ctx, p.cfg.Postgres.ConnConfig.Copy())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // its only transaction is over
	long := p.settings
	long.Idle = reach // Kafka is asked for start offsets inside
	var starts map[stream.Partition]int64
	if err := pgtx.Do(ctx, conn, long, func(tx *pgtx.Tx) (err error) {
		if p.pipeline, err = p.offsets.Register(ctx, tx, want, p.cfg.Topics, p.cfg.Share); err != nil {
			return err
		}
		if !bytes.Equal(p.pipeline.Generation, want.Generation) {
			return p.refusal()
		}
		if err := p.registerTopics(ctx, tx, adm); err != nil {
			return err
		}
		starts, err = p.offsets.Unclaimed(ctx, tx, p.pipeline.ID)
		return err
	}); err != nil {
		return err
	}
	return rebalance.StampStarts(ctx, adm, p.cfg.Pipeline, p.cfg.Group, p.topics, starts)
}

func (p *Processor) registerTopics(ctx context.Context, tx *pgtx.Tx, adm *kadm.Client) error {
	rows, err := p.offsets.Topics(ctx, tx, p.pipeline.ID, p.cfg.Topics)
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(p.topics)) {
		t := p.topics[name]
		at := slices.IndexFunc(rows, func(r offsets.Topic) bool { return r.ID == t.ID })
		switch {
		case at >= 0:
			t.Partitions = rows[at].Partitions // the count that keys were hashed over
			if !p.cfg.accepts(rows[at]) {
				return p.refusalOf(rows[at])
			}
			t.Scope, t.Generation = rows[at].Scope, rows[at].Generation
		case slices.ContainsFunc(rows, func(r offsets.Topic) bool { return r.Name == name }):
			return fmt.Errorf("topic %q: %w", name, ErrRecreated)
		default:
			t.Scope, t.Generation = p.cfg.Scope, p.cfg.generation(p.cfg.Scope, t.Partitions)
			if err := p.registerTopic(ctx, tx, adm, t); err != nil {
				return err
			}
		}
		p.topics[name] = t
	}
	return nil
}

// ErrRecreated says that a topic was deleted and created again under its name.
// Positions of the old one say nothing about the new one.
var ErrRecreated = errors.New("deleted and created again: its topic id is another than the positions'")

func (p *Processor) registerTopic(ctx context.Context, tx *pgtx.Tx, adm *kadm.Client, t rebalance.Topic) error {
	starts, err := rebalance.Starts(ctx, adm, p.cfg.Pipeline, p.cfg.Group, t, p.cfg.Start)
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	row := offsets.Topic{
		ID: t.ID, Name: t.Name, Partitions: t.Partitions, Scope: t.Scope, Start: p.cfg.Start.String(),
		Generation: t.Generation,
	}
	if err := p.offsets.Create(ctx, tx, p.pipeline.ID, row, starts); err != nil {
		return err
	}
	if t.Scope == stream.ScopeTopic {
		return p.log.CreateTopic(ctx, tx, p.pipeline.ID, t.ID, t.Generation)
	}
	return p.log.Create(ctx, tx, p.pipeline.ID, t.ID, 0, t.Partitions, t.Generation)
}

// controlConns is the budget of takeover, settlement and watch. Ending a backend
// takes two at once.
const controlConns = 4

// backgroundConns is the budget of loading, tending and sweeping.
const backgroundConns = loaders + keepers + 1

// openPools makes the three budgets. Each session carries the pipeline in its
// application_name, which is how a takeover knows a stuck backend for ours.
func (p *Processor) openPools(ctx context.Context) error {
	need := controlConns + p.cfg.Committers + backgroundConns
	if set := p.cfg.MaxConns; set > 0 && set < need {
		return fmt.Errorf("%w: the pool is limited to %d connections, %d are needed: %d for control, %d for committers, %d in the background",
			ErrConfig, set, need, controlConns, p.cfg.Committers, backgroundConns)
	}
	p.sessions = fmt.Sprintf("effectonce:%d:", p.pipeline.ID)
	for _, b := range []struct {
		pool **pgxpool.Pool
		size int
	}{{&p.control, controlConns}, {&p.commits, p.cfg.Committers}, {&p.background, backgroundConns}} {
		cfg := p.cfg.Postgres.Copy()
		cfg.MinConns, cfg.MaxConns = 0, int32(b.size)
		name := p.sessions + p.cfg.Pipeline + ":" + holder()
		cfg.ConnConfig.RuntimeParams["application_name"] = name[:min(len(name), 63)]
		cfg.AfterConnect = p.identify
		var err error
		if *b.pool, err = pgxpool.NewWithConfig(ctx, cfg); err != nil {
			return err
		}
	}
	return nil
}

// join makes the group's client: from here on callbacks come.
func (p *Processor) join(ctx context.Context) error {
	p.group = rebalance.New(rebalance.Config{
		Pipeline: p.cfg.Pipeline, Group: p.cfg.Group, ID: p.pipeline.ID, Topics: maps.Clone(p.topics), Grows: len(p.cfg.Key) == 0,
		Holder: holder(), Sessions: p.sessions, Grace: p.cfg.Grace, Static: p.cfg.Instance != "", Heartbeat: p.cfg.Heartbeat, OnReset: p.cfg.OnReset,
		Keyless: len(p.cfg.Key) == 0, Retention: p.cfg.DedupRetention,
		OnOutOfRange: p.cfg.OnOutOfRange, OnTruncated: p.cfg.OnTruncated,
		ByOffset: len(p.cfg.Key) > 0 && p.cfg.KeyMissing == KeyCoordinates,
		Offsets:  p.offsets, Log: p.log, Control: p.control,
	}, rebalance.Board{Open: p.list.open, Drop: p.list.drop, HandOver: p.handOver, Ask: p.loop.ask, Tell: p.tell})

	opts := append(slices.Clone(p.cfg.Kafka),
		kgo.ConsumerGroup(p.cfg.Group), kgo.ConsumeTopics(p.cfg.Topics...),
		kgo.FetchMaxWait(250*time.Millisecond), kgo.FetchMaxPartitionBytes(512<<10), kgo.FetchMaxBytes(16<<20),
		kgo.MetadataMaxAge(30*time.Second), kgo.KeepControlRecords(),
	)
	opts = append(opts, p.group.Options(context.WithoutCancel(ctx))...)
	opts = append(opts, p.membership()...)
	if !p.cfg.Dirty {
		opts = append(opts, kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	}
	client := p.logger.With().Str("part", "kafka client").Logger().Level(max(zerolog.WarnLevel, p.logger.GetLevel()))
	var err error
	p.client, err = kgo.NewClient(append(opts, kgo.WithLogger(kzerolog.New(&client)))...)
	return err
}
