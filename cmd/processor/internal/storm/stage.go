package storm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/naive"
	"effectonce/migrations"
)

// stage is where one protocol's storm takes place. remove undoes all of it.
type stage struct {
	options

	name   string // of topic, group, pipeline and schemas
	dir    string
	db     *pgxpool.Pool
	client *kgo.Client
	kafka  *kadm.Client
	file   string        // the members' configuration
	skew   time.Duration // of the database's clock before ours
}

func prepare(ctx context.Context, o options) (_ *stage, err error) {
	s := &stage{options: o, name: fmt.Sprintf("effectonce_storm_%d_%d", time.Now().UnixMilli(), os.Getpid())}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.remove(context.WithoutCancel(ctx)))
		}
	}()
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(o.Brokers...)); err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s.kafka = kadm.NewClient(s.client)
	if s.db, err = pgxpool.New(ctx, o.DSN); err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	for _, step := range []func(context.Context) error{s.topics, s.schemas, s.clock, s.broker, s.configuration} {
		if err = step(ctx); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// naiveTopic is the at-least-once group's own: it is slower, and would be far behind.
func (s *stage) naiveTopic() string { return s.name + "_naive" }

func (s *stage) topics(ctx context.Context) error {
	for _, topic := range []string{s.name, s.naiveTopic()} {
		if _, err := s.kafka.CreateTopic(ctx, s.partitions, 1, nil, topic); err != nil {
			return fmt.Errorf("topic %s: %w", topic, err)
		}
	}
	return nil
}

// data is the schema of the effect tables, ours and the naive group's.
func (s *stage) data() string { return s.name + "_data" }

const (
	oursTable  = "orders"
	naiveTable = "naive_orders"
)

func (s *stage) relation(schema, table string) string {
	return pgx.Identifier{schema, table}.Sanitize()
}

func (s *stage) schemas(ctx context.Context) error {
	m, err := migrations.Open(ctx, s.db.Config().ConnConfig, s.name)
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	if err = errors.Join(err, m.Close()); err != nil {
		return err
	}
	for _, sql := range []string{
		"CREATE SCHEMA " + pgx.Identifier{s.data()}.Sanitize(),
		"CREATE TABLE " + s.relation(s.data(), oursTable) + " (" + naive.Columns + ")",
		"CREATE TABLE " + s.relation(s.data(), naiveTable) + " (" + naive.Columns + ")",
	} {
		if _, err := s.db.Exec(ctx, sql); err != nil {
			return fmt.Errorf("tables: %w", err)
		}
	}
	return nil
}

// clock compares the database's clock, which stamps commits, with ours, which stamps
// events. The shortest of some round trips is the most exact.
func (s *stage) clock(ctx context.Context) error {
	best := time.Hour
	for range 10 {
		var theirs time.Time
		asked := time.Now()
		if err := s.db.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&theirs); err != nil {
			return fmt.Errorf("clock: %w", err)
		}
		if took := time.Since(asked); took < best {
			best, s.skew = took, theirs.Sub(asked.Add(took/2))
		}
	}
	return nil
}

// broker asks what is in force where it is not ours to set: session timeout and
// heartbeat interval of the consumer protocol.
func (s *stage) broker(ctx context.Context) error {
	if s.protocol != "consumer" {
		return nil
	}
	nodes, err := s.kafka.BrokerMetadata(ctx)
	if err != nil {
		return fmt.Errorf("brokers: %w", err)
	}
	described, err := s.kafka.DescribeBrokerConfigs(ctx, nodes.Brokers[0].NodeID)
	if err != nil {
		return fmt.Errorf("broker settings: %w", err)
	}
	for _, resource := range described {
		for _, c := range resource.Configs {
			var ms int64
			if _, err := fmt.Sscan(c.MaybeValue(), &ms); err != nil {
				continue
			}
			switch c.Key {
			case "group.consumer.session.timeout.ms":
				s.session = time.Duration(ms) * time.Millisecond
			case "group.consumer.heartbeat.interval.ms":
				s.heartbeat = time.Duration(ms) * time.Millisecond
			}
		}
	}
	return nil
}

func (s *stage) configuration(context.Context) (err error) {
	if s.dir, err = os.MkdirTemp("", "effectonce-storm-"); err != nil {
		return fmt.Errorf("temporary directory: %w", err)
	}
	if s.logs == "" {
		s.logs = s.dir
	} else {
		s.logs = filepath.Join(s.logs, s.name, s.protocol) // what lies there is of this storm
	}
	if err := os.MkdirAll(s.logs, 0o700); err != nil {
		return fmt.Errorf("directory of the logs: %w", err)
	}
	s.file = filepath.Join(s.dir, "member.yaml")
	if err := os.WriteFile(s.file, []byte(s.settings()), 0o600); err != nil {
		return fmt.Errorf("configuration: %w", err)
	}
	return nil
}

// settings is the FILE of `processor run`.
func (s *stage) settings() string {
	brokers := make([]string, len(s.Brokers))
	for i, b := range s.Brokers {
		brokers[i] = strconv.Quote(b)
	}
	return fmt.Sprintf(`pipeline: %s
kafka:
  brokers: [%s]
  topics: [%s]
  protocol: %s
  session_timeout: %s
  heartbeat_interval: %s
  rebalance_timeout: 10s
postgres:
  dsn: %q
  schema: %s
key: order_id
sink:
  table:
    schema: %s
    name: %s
    columns: {order_id: order_id, customer: customer, amount: amount, currency: currency, status: status, ts: ts,
      kafka_partition: "kafka:partition", kafka_offset: "kafka:offset"}
batch: {max_records: %d}
log: {format: json}
`, s.name, strings.Join(brokers, ", "), s.name, s.protocol, s.session, s.heartbeat, s.DSN, s.name, s.data(), oursTable, s.batch)
}

// remove drops everything; what is left behind has the stage's name in it.
func (s *stage) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if s.client != nil {
		_, _ = s.kafka.DeleteTopics(ctx, s.name, s.naiveTopic())
		_, _ = s.kafka.DeleteGroups(ctx, s.name, s.naiveTopic()) // a group that stays harms nobody
		s.client.Close()
	}
	if s.db != nil {
		for _, schema := range []string{s.data(), s.name} {
			_, _ = s.db.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{schema}.Sanitize()+" CASCADE")
		}
		s.db.Close()
	}
	return os.RemoveAll(s.dir)
}
