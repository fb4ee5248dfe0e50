package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/migrations"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// ledger is a pipeline with one partition in a schema of its own. It commits as a
// committer does; its records are numbers, and record n has key n.
type ledger struct {
	schema string
	config *pgx.ConnConfig
	conn   *pgx.Conn // of the committer
	behind *pgx.Conn // of what works in the background

	log       *dedup.Store
	positions *offsets.Store
	pipeline  offsets.Pipeline
	topic     offsets.Topic
	claim     stream.Claim
	view      *dedup.View
	next      int64 // the number that has not been committed yet

	hasher  *dedup.Hasher
	table   *sink.Table
	fold    dedup.Fold
	batch   stream.Batch
	keys    []byte // of the batch
	picks   []int
	applied []bool
	found   int64 // duplicates, in all
}

var effectColumns = []string{"order_id", "amount"}

// openLedger makes the schemas and takes the partition.
func openLedger(ctx context.Context, config *pgx.ConnConfig, schema string) (l *ledger, err error) {
	l = &ledger{
		schema: schema, config: config, log: dedup.New(schema), positions: offsets.New(schema),
		topic: offsets.Topic{ID: random(), Name: "bench", Partitions: 1, Scope: "partition", Start: "earliest", Generation: []byte("bench")},
	}
	defer func() {
		if err != nil {
			l.remove(ctx)
		}
	}()
	if l.conn, err = pgx.ConnectConfig(ctx, config); err != nil {
		return l, fmt.Errorf("postgres: %w", err)
	}
	if l.behind, err = pgx.ConnectConfig(ctx, config); err != nil {
		return l, fmt.Errorf("postgres: %w", err)
	}
	m, err := migrations.Open(ctx, config, schema)
	if err != nil {
		return l, err
	}
	_, err = m.Up(ctx)
	if err = errors.Join(err, m.Close()); err != nil {
		return l, err
	}
	for _, sql := range []string{"CREATE SCHEMA " + l.data(), "CREATE TABLE " + l.data() + ".effects (order_id text NOT NULL, amount bigint NOT NULL)"} {
		if _, err = l.conn.Exec(ctx, sql); err != nil {
			return l, fmt.Errorf("effect table: %w", err)
		}
	}
	if err = l.register(ctx); err != nil {
		return l, err
	}
	cfg := sink.TableConfig{Schema: schema + "_data", Name: "effects", Mode: sink.Insert}
	for i, c := range effectColumns {
		cfg.Columns = append(cfg.Columns, sink.Column{Name: c, Source: i, SourceName: c})
	}
	if l.table, err = sink.OpenTable(ctx, l.conn, cfg); err != nil {
		return l, err
	}
	err = l.takeOver(ctx)
	return l, err
}

// data is the schema of the effect table, quoted.
func (l *ledger) data() string { return pgx.Identifier{l.schema + "_data"}.Sanitize() }

// register writes the rows of a first start.
func (l *ledger) register(ctx context.Context) error {
	tx, err := pgtx.Begin(ctx, l.conn, pgtx.DefaultSettings)
	if err != nil {
		return err
	}
	want := offsets.Pipeline{Name: "bench", Salt: random(), Generation: l.topic.Generation, Group: "bench", ClusterID: "bench"}
	l.pipeline, err = l.positions.Register(ctx, tx, want, []string{l.topic.Name}, false)
	if err == nil {
		err = l.positions.Create(ctx, tx, l.pipeline.ID, l.topic, []int64{0})
	}
	if err == nil {
		err = l.log.Create(ctx, tx, l.pipeline.ID, l.topic.ID, 0, 1, l.topic.Generation)
	}
	if err != nil {
		tx.Rollback(ctx)
		return fmt.Errorf("register: %w", err)
	}
	l.hasher = dedup.NewHasher(l.pipeline.Salt)
	return tx.Commit(ctx)
}

// takeOver claims the partition anew and loads its view, without any filter.
func (l *ledger) takeOver(ctx context.Context) error {
	p := stream.Partition{Topic: l.topic.ID}
	want := offsets.Taking{Claim: stream.Claim{Partition: p, TopicName: l.topic.Name, Owner: random()}, Generation: l.topic.Generation}
	answers, err := l.positions.Takeover(ctx, l.conn, pgtx.DefaultSettings, l.pipeline.ID, "bench", []offsets.Taking{want}, true)
	if err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	if answers[0].Outcome != offsets.Taken {
		return fmt.Errorf("take over: %s", answers[0].Outcome)
	}
	l.claim = answers[0].Claim
	if l.view, err = l.log.Load(ctx, l.conn, pgtx.DefaultSettings, l.pipeline.ID, p, nil); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// remove drops the schemas and closes the sessions.
func (l *ledger) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	for _, c := range []*pgx.Conn{l.conn, l.behind} {
		if c != nil {
			_ = c.Close(ctx) // it may be broken, which is why we are here
		}
	}
	conn, err := pgx.ConnectConfig(ctx, l.config)
	if err != nil {
		return // what is left behind has our name in it
	}
	_, _ = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+l.data()+" CASCADE")
	_, _ = conn.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{l.schema}.Sanitize()+" CASCADE")
	_ = conn.Close(ctx)
}

// commit applies the records in one transaction: fence, effect, log, COMMIT. What
// is a duplicate is found, never told.
func (l *ledger) commit(ctx context.Context, numbers []int64, effect bool) error {
	if err := l.prepare(ctx, numbers, effect); err != nil {
		return err
	}
	n := int64(len(numbers))
	var xact string
	fence := l.positions.Fence(l.pipeline.ID, []offsets.Advance{{
		Claim: l.claim, Generation: l.topic.Generation, To: l.claim.Next + n, LeaderEpoch: 0, Newest: time.Now(),
	}}, &xact)
	tx, err := pgtx.Begin(ctx, l.conn, pgtx.DefaultSettings, fence)
	if err != nil {
		return err
	}
	if effect && len(l.picks) > 0 {
		if _, err := l.table.Apply(ctx, tx, &l.batch, l.picks); err != nil {
			tx.Rollback(ctx)
			return err
		}
	}
	run := dedup.Run{
		View: l.view, ID: random(), Newest: time.Now(), Fingerprints: l.fold.Run(func(i int) bool { return l.applied[i] }),
		Ranges: []dedup.Range{{
			Claim: l.claim, To: l.claim.Next + n, Read: n, Applied: int64(len(l.picks)), Duplicate: n - int64(len(l.picks)),
		}},
	}
	if err := tx.Commit(ctx, l.log.Append(xact, []dedup.Run{run})); err != nil {
		return err
	}
	l.view.Learn(run.ID, run.Fingerprints)
	l.claim.Next += n
	l.found += n - int64(len(l.picks))
	return nil
}

// prepare is everything that needs no transaction.
func (l *ledger) prepare(ctx context.Context, numbers []int64, effect bool) error {
	l.fold.Reset(0)
	l.batch.Reset(len(effectColumns))
	l.keys, l.applied = l.keys[:0], append(l.applied[:0], make([]bool, len(numbers))...)
	for _, n := range numbers {
		at := len(l.keys)
		l.keys = strconv.AppendInt(append(l.keys, "order-"...), n, 10)
		key := stream.Value{Kind: stream.Text, Data: l.keys[at:]}
		fp, err := l.hasher.Key(key)
		if err != nil {
			return fmt.Errorf("fingerprint: %w", err)
		}
		l.fold.Add(fp)
		if effect {
			l.batch.Records = append(l.batch.Records, stream.Record{})
			l.batch.Values = append(l.batch.Values, key, stream.Value{Kind: stream.Number, Data: l.keys[at+len("order-"):]})
		}
	}
	if err := l.decide(ctx); err != nil {
		return err
	}
	l.picks = l.fold.Winners(l.picks[:0], 0, len(numbers), func(int) bool { return false }, nil)
	for _, i := range l.picks {
		l.applied[i] = true
	}
	if !effect {
		return nil
	}
	for i := range numbers {
		l.batch.Skip = append(l.batch.Skip, !l.applied[i])
	}
	if faults := l.table.Encode(&l.batch, 0); len(faults) > 0 {
		return &faults[0]
	}
	return nil
}

// decide asks memory, and Postgres where memory does not know.
func (l *ledger) decide(ctx context.Context) error {
	for l.fold.Check(l.view) > 0 {
		if err := l.log.LookUp(ctx, l.conn, pgtx.DefaultSettings, &l.fold); err != nil {
			return fmt.Errorf("look up: %w", err)
		}
		if !l.fold.Open() {
			break
		}
		err := l.log.CatchUp(ctx, l.conn, pgtx.DefaultSettings, l.pipeline.ID, l.claim.Partition, l.view)
		if err != nil {
			return fmt.Errorf("catch up: %w", err)
		}
	}
	return nil
}

// fresh empties the effect table and settles the server.
func (l *ledger) fresh(ctx context.Context) error {
	for _, sql := range []string{"TRUNCATE " + l.data() + ".effects", "CHECKPOINT"} {
		if _, err := l.conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("fresh table: %w", err)
		}
	}
	return nil
}

func random() (u stream.UUID) {
	_, _ = rand.Read(u[:]) // never fails
	return u
}

// schemaName says whose a schema is, for people who find one.
func schemaName(what string) string {
	return fmt.Sprintf("effectonce_bench_%d_%d_%s", time.Now().Unix(), os.Getpid(), what)
}
