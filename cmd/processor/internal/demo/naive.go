package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/embedded"
)

const naiveGroup = "naive"

// naive reads how far the naive consumer is from what it committed to Kafka.
type naive struct {
	db    *pgxpool.Pool
	kafka *kadm.Client
}

func (n naive) progress(ctx context.Context) (int64, error) {
	offsets, err := n.kafka.FetchOffsets(ctx, naiveGroup)
	switch {
	case errors.Is(err, kerr.GroupIDNotFound): // nobody has joined yet
		return 0, nil
	case err != nil:
		return 0, err
	}
	var at int64
	offsets.Each(func(o kadm.OffsetResponse) { at += max(0, o.At) })
	return at, nil
}

func (n naive) working(ctx context.Context, pid int) (bool, error) {
	var working bool
	err := n.db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM public.naive_at_work WHERE pid = $1)`, pid).Scan(&working)
	return working, err
}

// naiveOrders is what the process of a naive consumer is told.
type naiveOrders struct {
	Broker string `json:"broker"`
	DSN    string `json:"dsn"`
}

// order is a record as the naive consumer reads it.
type order struct {
	OrderID  string      `json:"order_id"`
	Customer string      `json:"customer"`
	Amount   json.Number `json:"amount"`
	Currency string      `json:"currency"`
	Status   string      `json:"status"`
	TS       time.Time   `json:"ts"`
}

// serveNaive is the consumer most people write: poll, insert all of it in one COPY,
// then commit the offsets to Kafka. Nothing is lost; what lies between the insert
// and the commit when it dies, or when a partition moves, is inserted again, and a
// redelivered order is inserted as often as it comes.
func serveNaive(ctx context.Context, stdin io.Reader, log io.Writer) error {
	var o naiveOrders
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
	cl, err := kgo.NewClient(kgo.SeedBrokers(o.Broker), kgo.ConsumerGroup(naiveGroup), kgo.ConsumeTopics(topic),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/6), kgo.RebalanceTimeout(10*time.Second))
	if err != nil {
		return fmt.Errorf("kafka client: %w", err)
	}
	defer cl.Close()

	if err := consume(ctx, cl, conn, log); ctx.Err() == nil {
		return err
	}
	return nil // told to end: what was not committed is read again
}

func consume(ctx context.Context, cl *kgo.Client, conn *pgx.Conn, log io.Writer) error {
	for told := false; ; {
		const most = 10_000
		fetches := cl.PollRecords(ctx, most)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		if err := insert(ctx, conn, records); err != nil {
			return err
		}
		if err := cl.CommitRecords(ctx, records...); err != nil {
			_, _ = fmt.Fprintln(log, "commit offsets:", err) // the group is rebalancing; the next commit covers it
		}
		if told {
			continue
		}
		if _, err := conn.Exec(ctx, `INSERT INTO public.naive_at_work (pid) VALUES ($1)`, os.Getpid()); err != nil {
			return fmt.Errorf("tell: %w", err)
		}
		told = true
	}
}

func insert(ctx context.Context, conn *pgx.Conn, records []*kgo.Record) error {
	names := []string{"order_id", "customer", "amount", "currency", "status", "ts", "kafka_partition", "kafka_offset"}
	_, err := conn.CopyFrom(ctx, pgx.Identifier{"public", "naive_orders"}, names,
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
