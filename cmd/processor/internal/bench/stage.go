package bench

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/produce"
	"effectonce/migrations"
	"effectonce/pkg/processor"
	"effectonce/pkg/sink"
)

// stage is what one measurement set up: a topic with records, two schemas.
type stage struct {
	*throughput

	name  string // of topic and schemas
	admin *pgxpool.Pool
	kafka *kgo.Client
}

const columns = "order_id text, customer text, amount numeric(12,2), currency text, status text, ts timestamptz"

var mapped = []string{"order_id", "customer", "amount", "currency", "status", "ts"}

// prepare writes the topic and opens the schemas.
func (t *throughput) prepare(ctx context.Context, progress io.Writer) (*stage, error) {
	s := &stage{throughput: t, name: fmt.Sprintf("effectonce_bench_%d", time.Now().UnixNano())}
	var err error
	if s.kafka, err = kgo.NewClient(kgo.SeedBrokers(t.Brokers...)); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	if s.admin, err = pgxpool.New(ctx, t.DSN); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if _, err = kadm.NewClient(s.kafka).CreateTopic(ctx, t.partitions, 1, nil, s.name); err != nil {
		return nil, fmt.Errorf("topic: %w", err)
	}
	_, _ = fmt.Fprintf(progress, "producing %d records to %s\n", t.records, s.name) // progress only
	var sent produce.Sent
	job := produce.Job{Brokers: t.Brokers, Topic: s.name, Records: t.records, Repeat: t.repeat, Seed: t.seed}
	if err = produce.Run(ctx, job, &sent); err != nil {
		return nil, err
	}
	if err = s.migrate(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *stage) migrate(ctx context.Context) error {
	m, err := migrations.Open(ctx, s.admin.Config().ConnConfig, s.name)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }() // its work is done
	if _, err = m.Up(ctx); err != nil {
		return err
	}
	_, err = s.admin.Exec(ctx, "CREATE SCHEMA "+s.data())
	return err
}

// data is the schema of the effect tables, quoted.
func (s *stage) data() string { return pgx.Identifier{s.name + "_data"}.Sanitize() }

// remove drops everything; what is left behind has the stage's name in it.
func (s *stage) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	_, _ = kadm.NewClient(s.kafka).DeleteTopic(ctx, s.name)
	_, _ = s.admin.Exec(ctx, "DROP SCHEMA "+s.data()+" CASCADE; DROP SCHEMA "+pgx.Identifier{s.name}.Sanitize()+" CASCADE")
	s.admin.Close()
	s.kafka.Close()
}

// table makes a fresh effect table and settles the server.
func (s *stage) table(ctx context.Context, name string) error {
	for _, sql := range []string{
		"DROP TABLE IF EXISTS " + s.data() + "." + name, "CREATE TABLE " + s.data() + "." + name + " (" + columns + ")", "CHECKPOINT",
	} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fresh table: %w", err)
		}
	}
	return nil
}

func (s *stage) rows(ctx context.Context, name string) (n int64, err error) {
	err = s.admin.QueryRow(ctx, "SELECT count(*) FROM "+s.data()+"."+name).Scan(&n)
	return n, err
}

// ours runs the pipeline over the topic.
func (s *stage) ours(ctx context.Context, round int) (sample, error) {
	m := sample{Round: round, What: "effectonce"}
	if err := s.table(ctx, "orders"); err != nil {
		return m, err
	}
	pg, err := pgxpool.ParseConfig(s.DSN)
	if err != nil {
		return m, fmt.Errorf("postgres: %w", err)
	}
	reg := prometheus.NewRegistry()
	cfg := processor.Config{
		Pipeline: fmt.Sprintf("%s_%d", s.name, round), Topics: []string{s.name}, Share: true,
		Kafka: []kgo.Opt{kgo.SeedBrokers(s.Brokers...)}, Postgres: pg, Schema: s.name, Key: []string{"order_id"},
		Table:      &processor.Table{Schema: s.name + "_data", Name: "orders", Mode: sink.Insert},
		Committers: s.committers, Logger: zerolog.Nop(), Registry: reg,
	}
	for _, c := range mapped {
		cfg.Table.Columns = append(cfg.Table.Columns, processor.Column{Name: c, Source: c})
	}
	if s.profile != "" {
		end, err := startProfile(fmt.Sprintf("%s.%d", s.profile, round))
		if err != nil {
			return m, err
		}
		defer end()
	}
	rctx, stop := context.WithCancelCause(ctx)
	ended := make(chan error, 1)
	go func() {
		err := processor.Run(rctx, cfg)
		stop(fmt.Errorf("the pipeline ended: %w", err))
		ended <- err
	}()
	var g gauge
	m.RecordsPerSecond, m.CPUSeconds, m.MachineCPU, err = g.watch(rctx, s.records, func() int64 { return counted(reg) })
	stop(nil)
	if err2 := <-ended; err == nil {
		err = err2
	}
	if err != nil {
		return m, err
	}
	m.Rows, err = s.rows(ctx, "orders")
	return m, err
}

// counted is how many records the pipeline has committed.
func counted(reg *prometheus.Registry) int64 {
	families, err := reg.Gather()
	if err != nil {
		return 0
	}
	var n float64
	for _, f := range families {
		if f.GetName() == "effectonce_records_total" {
			for _, m := range f.GetMetric() {
				n += m.GetCounter().GetValue()
			}
		}
	}
	return int64(n)
}
