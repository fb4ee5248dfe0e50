package demo

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/cmd/processor/internal/produce"
)

// ledger is what the producer knows: the brokers acknowledged every record, and the
// distinct orders of a seed are numbered without a gap.
type ledger struct {
	seed     uint64
	records  int64
	distinct int64
}

// Tally is what a consumer's table holds, measured by the ledger.
type Tally struct {
	Rows       int64   `json:"rows"`
	Stopped    int64   `json:"duplicates_stopped"`
	Kills      int64   `json:"kills"`
	Lost       int64   `json:"lost"`         // orders without a row
	Doubled    int64   `json:"doubled"`      // rows beyond the first of an order
	Replayed   int64   `json:"replayed"`     // of these: the same Kafka record again
	OutOfOrder int64   `json:"out_of_order"` // rows written behind a later one of their partition
	Unknown    int64   `json:"unknown"`      // rows of orders that were never sent
	Seconds    float64 `json:"seconds"`
}

// count counts both tables.
func (s *stage) count(ctx context.Context, sent ledger) (Result, error) {
	r := Result{Records: sent.records, Distinct: sent.distinct, Partitions: s.opt.Partitions, Members: s.opt.Members, Seed: s.opt.Seed}
	for _, c := range []struct {
		tally *Tally
		table string
		flow  *flow
	}{{&r.Ours, "public.orders", s.ours}, {&r.Naive, "public.naive_orders", s.naive}} {
		var err error
		if *c.tally, err = tally(ctx, s.db, c.table, sent); err != nil {
			return Result{}, fmt.Errorf("count %s: %w", c.table, err)
		}
		c.tally.Kills, c.tally.Seconds = c.flow.kills.Load(), c.flow.took.Round(time.Millisecond).Seconds()
	}
	err := s.db.QueryRow(ctx, `
		SELECT coalesce(sum(duplicate), 0)::bigint, (SELECT count(*) FROM effectonce.dead_letters) FROM effectonce.audit`).
		Scan(&r.Ours.Stopped, &r.DeadLetters)
	if err != nil {
		return Result{}, fmt.Errorf("read the audit trail: %w", err)
	}
	return r, nil
}

// tally counts one table: in SQL what SQL can know, and against the ledger which
// orders have how many rows. The table's name is quoted where it has to be.
func tally(ctx context.Context, db *pgxpool.Pool, table string, sent ledger) (Tally, error) {
	var t Tally
	err := db.QueryRow(ctx, `
		SELECT count(*), count(*) - count(DISTINCT (kafka_partition, kafka_offset)), count(*) FILTER (WHERE back)
		FROM (SELECT kafka_partition, kafka_offset,
		             kafka_offset < lag(kafka_offset) OVER (PARTITION BY kafka_partition ORDER BY seq) AS back
		      FROM `+table+`) rows`).Scan(&t.Rows, &t.Replayed, &t.OutOfOrder)
	if err != nil {
		return Tally{}, err
	}

	seen := make([]bool, sent.distinct)
	rows, err := db.Query(ctx, `SELECT coalesce(order_id, ''), count(*) FROM `+table+` GROUP BY order_id`)
	if err != nil {
		return Tally{}, err
	}
	var id string
	var copies int64
	_, err = pgx.ForEachRow(rows, []any{&id, &copies}, func() error {
		n, ok := produce.Number(sent.seed, id)
		if !ok || n < 0 || n >= sent.distinct {
			t.Unknown += copies
			return nil
		}
		seen[n] = true
		t.Doubled += copies - 1
		return nil
	})
	for _, s := range seen {
		if !s {
			t.Lost++
		}
	}
	return t, err
}
