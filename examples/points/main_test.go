package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/pkg/processor"
)

// A producer that does not know whether its message arrived sends it again: 300
// grants of 10 points are sent three times each. Whoever adds per message grants
// 900 times.
func TestARedeliveredMessageDoesNotGrantTwice(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	schema := pgx.Identifier{db.User}.Sanitize()
	for sql := range strings.SplitSeq(strings.TrimSpace(tables), "\n") {
		db.Exec(t, strings.Replace(sql, "CREATE TABLE ", "CREATE TABLE "+schema+".", 1))
	}
	broker := kafkatest.Fake(t, 4, "events").ListenAddrs()[0]
	var recs []*kgo.Record
	send := func(e Event) {
		value, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, &kgo.Record{Topic: "events", Key: []byte(e.Customer), Value: value})
	}
	for range 3 {
		for i := range 300 {
			customer, order := fmt.Sprintf("c%d", i%7), fmt.Sprintf("o%d", i)
			send(Event{ID: "paid-" + order, Type: "order_paid", Customer: customer, Order: order})
			send(Event{ID: "grant-" + order, Type: "grant_points", Customer: customer, Points: 10})
		}
	}
	send(Event{ID: "odd", Type: "cancel", Customer: "c0"})
	kafkatest.ProduceTo(t, broker, recs...)

	pg, err := pgxpool.ParseConfig(db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		ended <- processor.Run(ctx, processor.Config{
			Pipeline: "points", Topics: []string{"events"}, Kafka: []kgo.Opt{kgo.SeedBrokers(broker)},
			Postgres: pg, Schema: db.Schema, Key: []string{"event_id"}, Handler: handler(schema),
			Logger: zerolog.Nop(),
		})
	}()
	scan := func(sql string) (n int64) {
		if err := db.Owner.QueryRow(t.Context(), sql).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for scan("SELECT coalesce(sum(next_offset), 0)::bigint FROM "+db.Relation("positions")) < int64(len(recs)) {
		select {
		case err := <-ended:
			t.Fatalf("ended early: %v", err)
		case <-tick.C:
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if n := scan("SELECT sum(balance)::bigint FROM " + schema + ".points"); n != 3000 {
		t.Errorf("%d points granted, want 3000", n)
	}
	if n := scan("SELECT count(*) FROM " + schema + ".orders WHERE status = 'paid'"); n != 300 {
		t.Errorf("%d orders paid, want 300", n)
	}
	if n := scan("SELECT count(*) FROM " + db.Relation("dead_letters")); n != 1 {
		t.Errorf("%d dead letters, want the one event nobody knows", n)
	}
}
