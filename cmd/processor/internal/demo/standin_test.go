package demo

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kgo"
)

// standIn plays `processor run` for the tests of what is around it: a consumer that
// asks its table before each insert, under one lock. It keeps the parts of our
// schema that the demo reads.
func standIn(ctx context.Context, file string) error {
	var cfg struct {
		Kafka    struct{ Brokers, Topics []string }
		Postgres struct{ DSN string }
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := yaml.Unmarshal(text, &cfg); err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, cfg.Postgres.DSN)
	if err != nil {
		return err
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(cfg.Kafka.Brokers...), kgo.ConsumerGroup("orders"), kgo.ConsumeTopics(cfg.Kafka.Topics...),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), kgo.DisableAutoCommit(), kgo.BlockRebalanceOnPoll(),
		kgo.SessionTimeout(session), kgo.HeartbeatInterval(session/6), kgo.RebalanceTimeout(session))
	if err != nil {
		return err
	}
	defer cl.CloseAllowingRebalance()
	for {
		fetches := cl.PollRecords(ctx, 5000)
		if ctx.Err() != nil {
			return nil
		}
		for _, topic := range fetches {
			for _, t := range topic.Topics {
				for _, p := range t.Partitions {
					if len(p.Records) == 0 {
						continue
					}
					if err := standInCommit(ctx, conn, [16]byte(t.TopicID), p.Partition, p.Records); err != nil {
						return err
					}
				}
			}
		}
		if err := cl.CommitRecords(ctx, fetches.Records()...); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		cl.AllowRebalance()
	}
}

func standInCommit(ctx context.Context, conn *pgx.Conn, topicID [16]byte, partition int32, records []*kgo.Record) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		holder := fmt.Sprintf("standin:%d", os.Getpid())
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(1)`); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			WITH p AS (
				INSERT INTO effectonce.pipelines (name, salt, generation, group_name, cluster_id, system_identifier)
				VALUES ('orders', '\x00000000000000000000000000000000', '', 'orders', '', 0) ON CONFLICT DO NOTHING RETURNING id),
			t AS (
				INSERT INTO effectonce.topics (pipeline, topic_id, name, partitions, scope, start, generation)
				SELECT id, $1, 'orders', 8, 'partition', 'earliest', '' FROM p)
			SELECT`, topicID)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `
			INSERT INTO effectonce.positions (pipeline, topic_id, partition, next_offset, owner, holder, generation)
			SELECT pipeline, topic_id, $2, 0, gen_random_uuid(), $3, '' FROM effectonce.topics WHERE topic_id = $1
			ON CONFLICT (pipeline, topic_id, partition, lane) DO UPDATE SET holder = excluded.holder`, topicID, partition, holder)
		if err != nil {
			return err
		}
		var next int64
		err = tx.QueryRow(ctx, `SELECT next_offset FROM effectonce.positions WHERE topic_id = $1 AND partition = $2 FOR UPDATE`, topicID, partition).Scan(&next)
		if err != nil {
			return err
		}
		if records[len(records)-1].Offset < next {
			return nil
		}
		var docs []string
		var offsets []int64
		for _, r := range records {
			if r.Offset >= next {
				docs, offsets = append(docs, string(r.Value)), append(offsets, r.Offset)
			}
		}
		tag, err := tx.Exec(ctx, `
			INSERT INTO public.orders (order_id, customer, amount, currency, status, ts, kafka_partition, kafka_offset)
			SELECT DISTINCT ON (d->>'order_id') d->>'order_id', d->>'customer', (d->>'amount')::numeric, d->>'currency', d->>'status',
			       (d->>'ts')::timestamptz, $3, o
			FROM unnest($1::json[], $2::bigint[]) u (d, o)
			WHERE NOT EXISTS (SELECT FROM public.orders x WHERE x.order_id = d->>'order_id')
			ORDER BY d->>'order_id', o`, docs, offsets, partition)
		if err != nil {
			return err
		}
		return standInAudit(ctx, tx, topicID, partition, next, records[len(records)-1].Offset+1, int64(len(docs)), tag.RowsAffected())
	})
}

func standInAudit(ctx context.Context, tx pgx.Tx, topicID [16]byte, partition int32, from, to, read, applied int64) error {
	_, err := tx.Exec(ctx, `UPDATE effectonce.positions SET next_offset = greatest(next_offset, $3) WHERE topic_id = $1 AND partition = $2`, topicID, partition, to)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `
		WITH old AS (SELECT id FROM effectonce.logs WHERE topic_id = $1 AND partition = $2),
		l AS (
			INSERT INTO effectonce.logs (pipeline, topic_id, partition, generation)
			SELECT pipeline, topic_id, $2, '' FROM effectonce.topics WHERE topic_id = $1 AND NOT EXISTS (SELECT FROM old) RETURNING id)
		INSERT INTO effectonce.runs (log, seq, run_id, ranges)
		SELECT l.id, $3, gen_random_uuid(),
		       ARRAY[ROW($1::uuid, $2::int, '', $3::bigint, $4::bigint, p.owner, 1, $5::bigint, $6::bigint, $5::bigint - $6::bigint, 0)::effectonce.run_range]
		FROM (SELECT id FROM l UNION ALL SELECT id FROM old) l, effectonce.positions p WHERE p.topic_id = $1 AND p.partition = $2`,
		topicID, partition, from, to, read, applied)
	return err
}

// standInArgs finds FILE.
func standInArgs(args []string) string {
	for _, a := range args {
		if strings.HasSuffix(a, ".yaml") {
			return a
		}
	}
	return ""
}
