package rebalance_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	topic    = "orders"
	pipeline = "p"
	limit    = time.Minute // for what must happen; nothing is measured by it
)

// patient bounds nothing that a test waits for: machines stall.
var patient = pgtx.Settings{Lock: limit, Statement: limit, Idle: limit} //nolint:gochecknoglobals // a constant

var gen = []byte("generation") //nolint:gochecknoglobals // a constant

// world is a topic on kfake and the rows of a pipeline in a private schema.
type world struct {
	*pgtest.DB
	t     *testing.T
	fake  *kfake.Cluster
	adm   *kadm.Client
	store *offsets.Store
	log   *dedup.Store
	id    int64
	topic rebalance.Topic // with the count the rows were made for
}

// newWorld has a topic of count partitions with ten records each, and rows for as
// many partitions as starts has.
func newWorld(t *testing.T, count int32, starts ...int64) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t), t: t, fake: kafkatest.Fake(t, count, topic)}
	w.adm = kadm.NewClient(kafkatest.Client(t, w.addr()))
	w.store, w.log = offsets.New(w.Schema), dedup.New(w.Schema)
	for n := range count {
		w.produce(n, 10)
	}
	_, found, err := rebalance.Find(t.Context(), w.adm, []string{topic})
	if err != nil {
		t.Fatal(err)
	}
	w.topic = found[topic]
	w.topic.Generation = gen
	w.topic.Partitions = int32(len(starts))
	w.rows(starts)
	return w
}

func (w *world) addr() string { return w.fake.ListenAddrs()[0] }

func (w *world) rows(starts []int64) {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), w.Conn(w.t), patient)
	if err != nil {
		w.t.Fatal(err)
	}
	p, err := w.store.Register(w.t.Context(), tx, offsets.Pipeline{Name: pipeline, Generation: gen, Group: pipeline, ClusterID: "c"}, nil, true)
	if err != nil {
		w.t.Fatal(err)
	}
	w.id = p.ID
	row := offsets.Topic{
		ID: w.topic.ID, Name: topic, Partitions: w.topic.Partitions, Scope: "partition", Start: "earliest", Generation: gen,
	}
	if err := w.store.Create(w.t.Context(), tx, w.id, row, starts); err != nil {
		w.t.Fatal(err)
	}
	if err := w.log.Create(w.t.Context(), tx, w.id, w.topic.ID, 0, row.Partitions, gen); err != nil {
		w.t.Fatal(err)
	}
	if err := tx.Commit(w.t.Context()); err != nil {
		w.t.Fatal(err)
	}
}

// produce appends n records to a partition; a record's value is its offset.
func (w *world) produce(number int32, n int) {
	w.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(w.addr()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		w.t.Fatal(err)
	}
	defer client.Close()
	for range n {
		if err := client.ProduceSync(w.t.Context(), &kgo.Record{Topic: topic, Partition: number, Value: []byte("v")}).FirstErr(); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) part(n int32) stream.Partition {
	return stream.Partition{Topic: w.topic.ID, Number: n}
}

func name(n int32) rebalance.Name { return rebalance.Name{Topic: topic, Number: n} }

// session is another process's connection, by its application_name.
func (w *world) session(application string) *pgx.Conn {
	w.t.Helper()
	cfg, err := pgx.ParseConfig(w.RuntimeDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = application
	conn, err := pgx.ConnectConfig(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) }) // it may have been ended
	return conn
}

// lock holds partition n's position as a transaction in flight does.
func (w *world) lock(conn *pgx.Conn, n int32) *pgtx.Tx {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), conn, patient, w.store.Read(w.id, []stream.Partition{w.part(n)}, true, func(offsets.Row) {}))
	if err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// set changes partition n's position row.
func (w *world) set(n int32, assignment string) {
	w.t.Helper()
	w.Exec(w.t, "UPDATE "+w.Relation("positions")+" SET "+assignment+" WHERE partition = $1", n)
}

// row is partition n's position row.
func (w *world) row(n int32) (r offsets.Row) {
	w.t.Helper()
	conn := w.Conn(w.t)
	if err := pgtx.Once(w.t.Context(), conn, patient, w.store.Read(w.id, []stream.Partition{w.part(n)}, false, func(found offsets.Row) { r = found })); err != nil {
		w.t.Fatal(err)
	}
	return r
}

// member is a process: a group, its client, and a poll goroutine that serves
// requests as the processor's does.
type member struct {
	*world
	group  *rebalance.Group
	client *kgo.Client
	events chan rebalance.Event
	polled chan struct{} // something was read
	stop   func()

	mu    sync.Mutex // guards what follows
	todo  []func()
	wake  func()
	open  map[rebalance.Name]stream.Claim
	drops []stream.UUID
	read  map[rebalance.Name][]int64 // offsets since the partition was opened
	early []rebalance.Name           // records of partitions that were not open
}

func (w *world) config() rebalance.Config {
	w.t.Helper()
	pool, err := pgxpool.ParseConfig(w.RuntimeDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	sessions := fmt.Sprintf("effectonce:%d:", w.id)
	pool.ConnConfig.RuntimeParams["application_name"] = sessions + "member"
	pool.MaxConns = 4
	control, err := pgxpool.NewWithConfig(w.t.Context(), pool)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(control.Close)
	return rebalance.Config{
		Pipeline: pipeline, Group: pipeline, ID: w.id, Topics: map[string]rebalance.Topic{topic: w.topic}, Holder: "here/1", Sessions: sessions,
		Grace: time.Hour, Heartbeat: time.Hour, OnReset: "warn", Offsets: w.store, Log: w.log, Control: control,
	}
}

// member makes one that does nothing yet: tests may play its client.
func (w *world) member(cfg rebalance.Config) *member {
	m := &member{
		world: w, events: make(chan rebalance.Event, 1<<14), polled: make(chan struct{}, 1), wake: func() {},
		open: map[rebalance.Name]stream.Claim{}, read: map[rebalance.Name][]int64{},
	}
	m.group = rebalance.New(cfg, rebalance.Board{Open: m.opened, Drop: m.drop, HandOver: m.drop, Ask: m.ask, Tell: func(e rebalance.Event) { m.events <- e }})
	return m
}

// join starts it; it leaves at the end of the test if not before.
func (w *world) join(cfg rebalance.Config, more ...kgo.Opt) *member {
	w.t.Helper()
	m := w.member(cfg)
	opts := append([]kgo.Opt{
		kgo.SeedBrokers(w.addr()), kgo.ConsumerGroup(pipeline), kgo.ConsumeTopics(topic), kgo.FetchMaxWait(100 * time.Millisecond),
		kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.HeartbeatInterval(100 * time.Millisecond),
		kgo.MetadataMinAge(50 * time.Millisecond), kgo.MetadataMaxAge(300 * time.Millisecond),
	}, m.group.Options(context.WithoutCancel(w.t.Context()))...)
	var err error
	if m.client, err = kgo.NewClient(append(opts, more...)...); err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var running sync.WaitGroup
	running.Go(func() { m.poll(ctx) })
	running.Go(func() { _ = m.group.Run(ctx) }) // it returns none
	m.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
		m.client.CloseAllowingRebalance()
	})
	w.t.Cleanup(m.stop)
	return m
}

func (m *member) poll(ctx context.Context) {
	for ctx.Err() == nil {
		turn, wake := context.WithCancel(ctx)
		m.mu.Lock()
		if m.wake = wake; len(m.todo) > 0 {
			wake()
		}
		m.mu.Unlock()
		fetches := m.client.PollFetches(turn)
		wake()
		bad := map[rebalance.Name]bool{}
		fetches.EachError(func(topic string, n int32, err error) {
			if topic != "" {
				bad[name(n)] = m.group.Failed(name(n), err)
			}
		})
		fetches.EachTopic(func(f kgo.FetchTopic) { m.group.TopicID(f.Topic, stream.UUID(f.TopicID)) })
		fetches.EachPartition(func(f kgo.FetchTopicPartition) {
			if !bad[name(f.Partition)] {
				m.offer(name(f.Partition), f.Records)
			}
		})
		m.mu.Lock()
		todo := m.todo
		m.todo = nil
		m.mu.Unlock()
		for _, f := range todo {
			f()
		}
		m.client.AllowRebalance()
	}
}

func (m *member) offer(n rebalance.Name, recs []*kgo.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.open[n]; !ok && len(recs) > 0 {
		m.early = append(m.early, n)
		return
	}
	for _, r := range recs {
		m.read[n] = append(m.read[n], r.Offset)
	}
	select {
	case m.polled <- struct{}{}:
	default:
	}
}

func (m *member) ask(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.todo = append(m.todo, f)
	m.wake()
}

func (m *member) opened(c stream.Claim) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := name(c.Partition.Number)
	m.open[n], m.read[n] = c, nil
}

func (m *member) drop(owner stream.UUID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drops = append(m.drops, owner)
	for n, c := range m.open {
		if c.Owner == owner {
			delete(m.open, n)
		}
	}
}

// await returns the next event of a kind about a partition; what comes before it is
// not looked at again.
func (m *member) await(kind string, n int32) rebalance.Event {
	m.t.Helper()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	var before []string
	for {
		select {
		case e := <-m.events:
			if e.Kind == kind && e.Name.Number == n {
				return e
			}
			before = append(before, fmt.Sprintf("%s %s %s %v", e.Kind, e.Name, e.Cause, e.Err))
		case <-deadline.C:
			m.t.Fatalf("no event %q of partition %d; held: %+v; events before: %q", kind, n, m.group.Held(), before)
		}
	}
}

// reads waits until the partition was read from its opening up to its tenth record,
// each record once.
func (m *member) reads(n int32, from, to int64) {
	m.t.Helper()
	var want []int64
	for o := from; o < to; o++ {
		want = append(want, o)
	}
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		m.mu.Lock()
		got, early := slices.Clone(m.read[name(n)]), slices.Contains(m.early, name(n))
		m.mu.Unlock()
		if early {
			m.t.Errorf("records of partition %d came while it was not open", n)
		}
		if len(got) >= len(want) {
			if diff := cmp.Diff(want, got); diff != "" {
				m.t.Errorf("partition %d was read (-want +got):\n%s", n, diff)
			}
			return
		}
		select {
		case <-m.polled:
		case <-deadline.C:
			m.t.Fatalf("partition %d: read %v, want %v; held: %+v", n, got, want, m.group.Held())
		}
	}
}

// held is what the group holds of a partition.
func (m *member) held(n int32) rebalance.Held {
	m.t.Helper()
	for _, h := range m.group.Held() {
		if h.Name == name(n) {
			return h
		}
	}
	m.t.Fatalf("partition %d is not held: %+v", n, m.group.Held())
	return rebalance.Held{}
}

// stopped waits until a partition stops for a cause: paused and without a queue.
func (m *member) stopped(n int32, code string) rebalance.Event {
	m.t.Helper()
	e := m.await("stopped", n)
	if h := m.held(n); e.Cause.Code != code || h.State != rebalance.Stopped || h.Cause.Code != code {
		m.t.Errorf("partition %d stopped for %q and is %s for %q, want %q", n, e.Cause.Code, h.State, h.Cause.Code, code)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.open[name(n)]; ok {
		m.t.Errorf("partition %d is stopped and has a queue", n)
	}
	if m.client != nil && !slices.Contains(m.client.PauseFetchPartitions(nil)[topic], n) {
		m.t.Errorf("partition %d is stopped and not paused", n)
	}
	return e
}
