// Package naive is the consumer most people write: poll, insert all of it in one
// COPY, then commit the offsets to Kafka. Nothing is lost; what lies between the
// insert and the commit when it dies, or when a partition moves, is inserted again,
// and a redelivered order is inserted as often as it comes. Demo and storm run it
// beside the pipeline, to compare.
package naive

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/embedded"
)

// Verb starts the consumer; it reads its Orders from standard input.
const Verb = "naive-consumer"

// Columns are those of the table it fills, with seq for the order of the writes. No
// constraint hides a doubled row.
const Columns = `seq bigint GENERATED ALWAYS AS IDENTITY, order_id text, customer text, amount numeric(12,2), currency text,
	status text, ts timestamptz, kafka_partition integer, kafka_offset bigint`

// Orders is what the process is told.
type Orders struct {
	Brokers   []string      `json:"brokers"`
	DSN       string        `json:"dsn"`
	Topic     string        `json:"topic"`
	Group     string        `json:"group"`
	Protocol  string        `json:"protocol"` // as kafka.protocol
	Session   time.Duration `json:"session"`
	Heartbeat time.Duration `json:"heartbeat"`
	Schema    string        `json:"schema"` // of the table
	Table     string        `json:"table"`
	AtWork    string        `json:"at_work"` // table that learns its pid once it has consumed; empty is none
}

// Command is the hidden verb.
func Command() *cobra.Command {
	return &cobra.Command{Use: Verb, Hidden: true, Args: cobra.NoArgs, RunE: func(cmd *cobra.Command, _ []string) error {
		return serve(cmd.Context(), cmd.InOrStdin(), cmd.ErrOrStderr())
	}}
}

func serve(ctx context.Context, stdin io.Reader, log io.Writer) error {
	var o Orders
	ctx, cancel, err := embedded.Receive(ctx, stdin, &o)
	if err != nil {
		return err
	}
	defer cancel()
	conn, err := pgx.Connect(ctx, o.DSN)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the process ends
	cl, err := kgo.NewClient(o.options()...)
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()

	c := consumer{orders: o, client: cl, conn: conn, log: log}
	if err := c.run(ctx); ctx.Err() == nil {
		return err
	}
	return nil // told to end: what was not committed is read again
}

func (o Orders) options() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SeedBrokers(o.Brokers...), kgo.ConsumerGroup(o.Group), kgo.ConsumeTopics(o.Topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(o.Session), kgo.HeartbeatInterval(o.Heartbeat), kgo.RebalanceTimeout(10 * time.Second),
	}
	switch o.Protocol {
	case "range":
		opts = append(opts, kgo.Balancers(kgo.RangeBalancer()))
	case "consumer":
		opts = append(opts, kgo.ServerSideBalancer())
	}
	return opts
}

// consumer is one process of the group.
type consumer struct {
	orders Orders
	client *kgo.Client
	conn   *pgx.Conn
	log    io.Writer
	told   bool
}

func (c *consumer) run(ctx context.Context) error {
	for {
		const most = 10_000
		fetches := c.client.PollRecords(ctx, most)
		var session *kgo.ErrGroupSession
		if err := fetches.Err0(); errors.As(err, &session) {
			_, _ = fmt.Fprintln(c.log, "poll:", err) // the client joins the group again
		} else if err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		if err := c.insert(ctx, records); err != nil {
			return err
		}
		if err := c.client.CommitRecords(ctx, records...); err != nil {
			_, _ = fmt.Fprintln(c.log, "commit offsets:", err) // the group is rebalancing; the next commit covers it
		}
		if err := c.tell(ctx); err != nil {
			return err
		}
	}
}

func (c *consumer) insert(ctx context.Context, records []*kgo.Record) error {
	names := []string{"order_id", "customer", "amount", "currency", "status", "ts", "kafka_partition", "kafka_offset"}
	_, err := c.conn.CopyFrom(ctx, pgx.Identifier{c.orders.Schema, c.orders.Table}, names,
		pgx.CopyFromSlice(len(records), func(i int) ([]any, error) {
			var o order
			if err := json.Unmarshal(records[i].Value, &o); err != nil {
				return nil, err
			}
			return []any{o.OrderID, o.Customer, o.Amount.String(), o.Currency, o.Status, o.TS, records[i].Partition, records[i].Offset}, nil
		}))
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return nil
}

// order is a record as it is read.
type order struct {
	OrderID  string      `json:"order_id"`
	Customer string      `json:"customer"`
	Amount   json.Number `json:"amount"`
	Currency string      `json:"currency"`
	Status   string      `json:"status"`
	TS       time.Time   `json:"ts"`
}

// tell says once that this process has consumed.
func (c *consumer) tell(ctx context.Context) error {
	if c.told || c.orders.AtWork == "" {
		return nil
	}
	if _, err := c.conn.Exec(ctx, `INSERT INTO `+c.orders.AtWork+` (pid) VALUES ($1)`, os.Getpid()); err != nil {
		return fmt.Errorf("tell: %w", err)
	}
	c.told = true
	return nil
}
