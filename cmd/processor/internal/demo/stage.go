package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/embedded"
	"effectonce/cmd/processor/internal/naive"
	"effectonce/migrations"
)

const (
	topic  = "orders"
	schema = "effectonce"
	role   = "orders_app" // what the members log in as

	// session is how long the broker waits for a killed member: short, so that its
	// partitions move on soon.
	session = 3 * time.Second

	// patience bounds the start of the servers; fetching Postgres is most of it.
	patience = 3 * time.Minute
)

// stage is where the demo takes place. close undoes all of it.
type stage struct {
	opt    Options
	say    *teller
	dir    string
	pg     *embedded.Postgres
	kafka  *embedded.Kafka
	db     *pgxpool.Pool // as the owner
	client *kgo.Client
	file   string // the members' configuration
	ours   *flow
	naive  *flow
}

func open(ctx context.Context, o Options, say *teller) (_ *stage, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := &stage{opt: o, say: say}
	if s.dir, err = embedded.TempDir(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.pg, err = embedded.StartPostgres(ctx, o.Binary, s.dir, o.Fetch); err != nil {
		return nil, err
	}
	say.line("Postgres %s (%s)%s on 127.0.0.1:%s", s.pg.Version, s.pg.Source, underAccount(s.pg.Account), strconv.Itoa(s.pg.Port))
	if s.kafka, err = embedded.StartKafka(ctx, o.Binary, s.dir, topic, o.Partitions, s.pg); err != nil {
		return nil, err
	}
	say.line("Kafka (kfake, on disk) on %s, topic %s with %d partitions", s.kafka.Address, topic, o.Partitions)
	if s.client, err = kgo.NewClient(kgo.SeedBrokers(s.kafka.Address)); err != nil {
		return nil, fmt.Errorf("kafka client: %w", err)
	}
	if s.db, err = pgxpool.New(ctx, s.pg.DSN("", "")); err != nil {
		return nil, fmt.Errorf("connect to Postgres: %w", err)
	}
	password := rand.Text()
	if err := s.createTables(ctx, password); err != nil {
		return nil, err
	}
	s.file = filepath.Join(s.dir, "orders.yaml")
	if err := os.WriteFile(s.file, []byte(pipeline(s.kafka.Address, s.pg.DSN(role, password))), 0o600); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	if err := s.cast(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

func underAccount(name string) string {
	if name == "" {
		return ""
	}
	return " as account " + name
}

// createTables makes the two tables, which are the same and have no constraint that
// could hide a doubled row, and a role that may do no more than a pipeline needs.
// seq tells in which order the rows were written.
func (s *stage) createTables(ctx context.Context, password string) error {
	config, err := pgx.ParseConfig(s.pg.DSN("", ""))
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	m, err := migrations.Open(ctx, config, schema)
	if err != nil {
		return err
	}
	defer func() { _ = m.Close() }() // nothing is pending
	if _, err := m.Up(ctx); err != nil {
		return err
	}
	// The password is of letters and digits.
	_, err = s.db.Exec(ctx, `
		CREATE TABLE public.orders (`+naive.Columns+`);
		CREATE TABLE public.naive_orders (LIKE public.orders INCLUDING IDENTITY);
		CREATE TABLE public.naive_at_work (pid bigint);
		CREATE ROLE `+role+` LOGIN NOSUPERUSER PASSWORD '`+password+`';
		GRANT SELECT, INSERT ON public.orders, public.naive_orders, public.naive_at_work TO `+role)
	if err != nil {
		return fmt.Errorf("create tables: %w", err)
	}
	return m.Grant(ctx, role)
}

// pipeline is the FILE of `processor run`.
func pipeline(broker, dsn string) string {
	return `# The pipeline of the demo.
pipeline: orders
kafka:
  brokers: ["` + broker + `"]
  topics: [` + topic + `]
  session_timeout: ` + session.String() + `      # short: a killed member is missed soon
  heartbeat_interval: 500ms
  rebalance_timeout: 10s
postgres:
  dsn: ` + dsn + `
  schema: ` + schema + `
key: order_id
sink:
  table:
    name: orders
    columns:
      order_id: order_id
      customer: customer
      amount: amount
      currency: currency
      status: status
      ts: ts
      kafka_partition: kafka:partition
      kafka_offset: kafka:offset
`
}

// cast says which processes the two flows consist of. The same member of both is
// the victim, at the same moments of its own flow's progress.
func (s *stage) cast(ctx context.Context) error {
	s.ours = newFlow("member", s.opt, s.say, s.healthy, ours{s.db})
	s.naive = newFlow("naive consumer", s.opt, s.say, s.healthy, naiveStore{s.db, kadm.NewClient(s.client)})
	for i := range s.opt.Members {
		port, err := embedded.FreePort(ctx)
		if err != nil {
			return err
		}
		args := []string{"run", s.file, "--set", fmt.Sprintf("admin.listen=127.0.0.1:%d", port)}
		if !embedded.KernelTells {
			args = append([]string{childVerb}, args...)
		}
		s.ours.specs = append(s.ours.specs, embedded.Spec{
			Name: fmt.Sprintf("%s %d", s.ours.name, i+1), Path: s.opt.Binary, Args: args, Env: embedded.PlainEnv(),
			Log: filepath.Join(s.dir, fmt.Sprintf("member-%d.log", i+1)), Orphaned: syscall.SIGKILL,
		})
		s.naive.specs = append(s.naive.specs, embedded.Spec{
			Name: fmt.Sprintf("%s %d", s.naive.name, i+1), Path: s.opt.Binary, Args: []string{naive.Verb}, Env: embedded.PlainEnv(),
			Log: filepath.Join(s.dir, fmt.Sprintf("naive-%d.log", i+1)), Orphaned: syscall.SIGKILL,
			Orders: naive.Orders{
				Brokers: []string{s.kafka.Address}, DSN: s.pg.DSN("", ""), Topic: topic, Group: naiveGroup,
				Session: session, Heartbeat: session / 6, Schema: "public", Table: "naive_orders", AtWork: "public.naive_at_work",
			},
		})
	}
	return nil
}

// healthy fails if a server ended by itself.
func (s *stage) healthy() error {
	select {
	case <-s.pg.Done():
		return fmt.Errorf("%w%s", s.pg.Died(), s.pg.Tail())
	case <-s.kafka.Done():
		return s.kafka.Died()
	default:
		return nil
	}
}

// close ends every process and removes every file. It works on what open got to.
func (s *stage) close() error {
	var errs []error
	for _, f := range []*flow{s.ours, s.naive} {
		if f != nil {
			errs = append(errs, f.kill())
		}
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.db != nil {
		s.db.Close()
	}
	if s.pg != nil {
		errs = append(errs, s.pg.Stop())
	}
	if s.kafka != nil {
		errs = append(errs, s.kafka.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}
