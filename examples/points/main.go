// Command points is the story everyone knows: "order paid" sets an order to paid,
// "grant points" adds points to a customer. Setting twice is harmless; adding
// twice is not, and a redelivered message must not grant twice.
//
// The handler adds points with a plain +=. That it runs once per event_id, whatever
// is redelivered, replayed or killed, is the pipeline's part.
//
// To run it, with EFFECTONCE_DSN for the database (default postgres://127.0.0.1/shop)
// and EFFECTONCE_BROKER for Kafka (default 127.0.0.1:9092):
//
//  1. Create the topic events, with as many partitions as you like, keyed by customer.
//  2. Create the tables below (see tables) in the schema public.
//  3. Migrate: processor migrate up FILE, FILE being any pipeline's with that database.
//  4. go run ./examples/points
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/processor"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// Event is what the topic carries. The Kafka key is the customer, so one
// customer's events stay in order; the business key is event_id.
type Event struct {
	ID       string `json:"event_id"`
	Type     string `json:"type"` // order_paid or grant_points
	Customer string `json:"customer"`
	Order    string `json:"order"`
	Points   int64  `json:"points"`
}

// tables are what the handler writes.
const tables = `
CREATE TABLE orders (id text PRIMARY KEY, customer text NOT NULL, status text NOT NULL);
CREATE TABLE points (customer text PRIMARY KEY, balance bigint NOT NULL);`

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "points:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pg, err := pgxpool.ParseConfig(cmp.Or(os.Getenv("EFFECTONCE_DSN"), "postgres://127.0.0.1/shop"))
	if err != nil {
		return err
	}
	return processor.Run(ctx, processor.Config{
		Pipeline: "points",
		Topics:   []string{"events"},
		Kafka:    []kgo.Opt{kgo.SeedBrokers(cmp.Or(os.Getenv("EFFECTONCE_BROKER"), "127.0.0.1:9092"))},
		Postgres: pg,
		Key:      []string{"event_id"},
		Handler:  handler("public"),
		Admin:    "127.0.0.1:9464",
		Logger:   zerolog.New(os.Stderr).With().Timestamp().Logger(),
	})
}

// handler returns the effect, for tables in this schema.
func handler(schema string) sink.Func {
	return func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		var rejected []sink.Rejection
		paid := map[string]string{}   // order → customer
		granted := map[string]int64{} // customer → points
		for _, r := range records {
			var e Event
			switch err := json.Unmarshal(r.Value, &e); {
			case err != nil:
				rejected = append(rejected, sink.Reject(r, "not an event: "+err.Error()))
			case e.Type == "order_paid" && e.Order != "":
				paid[e.Order] = e.Customer
			case e.Type == "grant_points" && e.Points > 0:
				granted[e.Customer] += e.Points
			default:
				rejected = append(rejected, sink.Reject(r, "no such event: "+e.Type))
			}
		}
		if len(rejected) > 0 { // asked again without them
			return rejected, nil
		}
		if err := pay(ctx, tx, schema, paid); err != nil {
			return nil, err
		}
		return nil, grant(ctx, tx, schema, granted)
	}
}

// pay sets orders to paid. Rows are written in key order, as everywhere.
func pay(ctx context.Context, tx sink.Tx, schema string, paid map[string]string) error {
	orders := slices.Sorted(maps.Keys(paid))
	customers := make([]string, len(orders))
	for i, o := range orders {
		customers[i] = paid[o]
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+schema+`.orders (id, customer, status)
		SELECT id, customer, 'paid' FROM unnest($1::text[], $2::text[]) AS u (id, customer)
		ON CONFLICT (id) DO UPDATE SET status = 'paid'`, orders, customers)
	return err
}

// grant adds points.
func grant(ctx context.Context, tx sink.Tx, schema string, granted map[string]int64) error {
	customers := slices.Sorted(maps.Keys(granted))
	points := make([]int64, len(customers))
	for i, c := range customers {
		points[i] = granted[c]
	}
	_, err := tx.Exec(ctx, `INSERT INTO `+schema+`.points AS p (customer, balance)
		SELECT customer, points FROM unnest($1::text[], $2::bigint[]) AS u (customer, points)
		ON CONFLICT (customer) DO UPDATE SET balance = p.balance + excluded.balance`, customers, points)
	return err
}
