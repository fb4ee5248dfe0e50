package bench

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
	"effectonce/pkg/decode"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// plain is the consumer to compare with: polls, decodes, COPYs and moves the
// positions in one transaction. It has no claim, no fence, no dedup, and each
// partition belongs to one worker.
func (s *stage) plain(ctx context.Context, round int) (sample, error) {
	m := sample{Round: round, What: "plain_copy"}
	if err := s.table(ctx, "plain"); err != nil {
		return m, err
	}
	positions := s.data() + ".positions"
	for _, sql := range []string{
		"DROP TABLE IF EXISTS " + positions,
		"CREATE TABLE " + positions + " (partition integer PRIMARY KEY, next_offset bigint NOT NULL) WITH (fillfactor = 50)",
		fmt.Sprintf("INSERT INTO %s SELECT n, 0 FROM generate_series(0, %d) n", positions, s.partitions-1),
	} {
		if _, err := s.admin.Exec(ctx, sql); err != nil {
			return m, fmt.Errorf("positions: %w", err)
		}
	}
	rctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var done atomic.Int64
	ended := make(chan error, 1)
	go func() {
		err := s.plainConsumer(rctx, positions, &done)
		stop(fmt.Errorf("the plain consumer ended: %w", err))
		ended <- err
	}()
	var g gauge
	var err error
	m.RecordsPerSecond, m.CPUSeconds, m.MachineCPU, err = g.watch(rctx, s.records, done.Load)
	stop(nil)
	if err2 := <-ended; err == nil {
		err = err2
	}
	if err != nil {
		return m, err
	}
	m.Rows, err = s.rows(ctx, "plain")
	return m, err
}

func (s *stage) plainConsumer(ctx context.Context, positions string, done *atomic.Int64) error {
	workers := s.committers
	if workers == 0 {
		workers = min(2*runtime.GOMAXPROCS(0), 8)
	}
	start := map[int32]kgo.Offset{}
	for n := range s.partitions {
		start[n] = kgo.NewOffset().At(0)
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(s.Brokers...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.name: start}),
		kgo.FetchMaxWait(250*time.Millisecond), kgo.FetchMaxPartitionBytes(512<<10), kgo.FetchMaxBytes(16<<20))
	if err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	defer client.Close()
	eg, ctx := errgroup.WithContext(ctx)
	queues := make([]chan []*kgo.Record, workers)
	for i := range queues {
		queues[i] = make(chan []*kgo.Record, 32)
		eg.Go(func() error { return s.plainWorker(ctx, positions, queues[i], done) })
	}
	eg.Go(func() error {
		for ctx.Err() == nil {
			fs := client.PollFetches(ctx)
			fs.EachPartition(func(p kgo.FetchTopicPartition) {
				if len(p.Records) == 0 {
					return
				}
				select {
				case queues[int(p.Partition)%workers] <- p.Records:
				case <-ctx.Done():
				}
			})
		}
		return nil
	})
	return eg.Wait()
}

// batchRecords is the most records in a transaction, the pipeline's own default.
const batchRecords = 10_000

func (s *stage) plainWorker(ctx context.Context, positions string, queue <-chan []*kgo.Record, done *atomic.Int64) error {
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // the measurement is over
	w := &plainBatch{positions: positions, conn: conn}
	if err := w.open(ctx, s.name+"_data"); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case recs := <-queue:
			w.batch.Reset(len(mapped))
			w.decoder.Reset()
			clear(w.next)
			w.add(recs)
			for more := true; more && len(w.batch.Records) < batchRecords; {
				select {
				case recs = <-queue:
					w.add(recs)
				default:
					more = false
				}
			}
			if err := w.commit(context.WithoutCancel(ctx)); err != nil {
				return err
			}
			done.Add(int64(len(w.batch.Records)))
		}
	}
}

type plainBatch struct {
	positions string
	conn      *pgx.Conn
	table     *sink.Table
	decoder   *decode.Decoder
	batch     stream.Batch
	next      map[int32]int64
	picks     []int
	err       error
}

func (w *plainBatch) open(ctx context.Context, schema string) error {
	cfg := sink.TableConfig{Schema: schema, Name: "plain", Mode: sink.Insert}
	var sources []decode.Source
	for i, c := range mapped {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: c, Source: i, SourceName: c})
		src, err := decode.ParseSource(c)
		if err != nil {
			return err
		}
		sources = append(sources, src)
	}
	plan, err := decode.New(sources, decode.Limits{})
	if err != nil {
		return err
	}
	w.decoder, w.next = plan.NewDecoder(), map[int32]int64{}
	w.table, err = sink.OpenTable(ctx, w.conn, cfg)
	return err
}

func (w *plainBatch) add(recs []*kgo.Record) {
	for _, r := range recs {
		i := len(w.batch.Records)
		w.batch.Records = append(w.batch.Records, stream.Record{
			Topic: r.Topic, Offset: r.Offset, LeaderEpoch: r.LeaderEpoch, Timestamp: r.Timestamp, Key: r.Key, Value: r.Value,
		})
		w.batch.Values = append(w.batch.Values, blank...)
		if err := w.decoder.Decode(&w.batch.Records[i], w.batch.Row(i)); err != nil && w.err == nil {
			w.err = err
		}
		w.next[r.Partition] = r.Offset + 1
	}
}

var blank = make([]stream.Value, len(mapped))

// commit is [BEGIN, settings] · [COPY] · [positions, COMMIT].
func (w *plainBatch) commit(ctx context.Context) error {
	if faults := w.table.Encode(&w.batch, 0); len(faults) > 0 && w.err == nil {
		w.err = &faults[0]
	}
	if w.err != nil {
		return w.err
	}
	w.picks = w.picks[:0]
	for i := range w.batch.Records {
		w.picks = append(w.picks, i)
	}
	tx, err := pgtx.Begin(ctx, w.conn, pgtx.DefaultSettings)
	if err != nil {
		return err
	}
	if _, err = w.table.Apply(ctx, tx, &w.batch, w.picks); err != nil {
		tx.Rollback(ctx)
		return err
	}
	var numbers []int32
	var offsets []int64
	for n, o := range w.next {
		numbers, offsets = append(numbers, n), append(offsets, o)
	}
	return tx.Commit(ctx, pgtx.Statement{
		Step:   pgtx.StepWrite,
		SQL:    "UPDATE " + w.positions + " p SET next_offset = u.o FROM unnest($1, $2) AS u (n, o) WHERE p.partition = u.n",
		Params: []pgtx.Param{{OID: pgtype.Int4ArrayOID, Value: numbers}, {OID: pgtype.Int8ArrayOID, Value: offsets}},
	})
}
