package offsets_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// register starts a pipeline as a member does.
func (w *world) register(conn *pgx.Conn, p offsets.Pipeline, share bool, topics ...string) (got offsets.Pipeline, err error) {
	w.t.Helper()
	err = w.tx(conn, func(tx *pgtx.Tx) error {
		got, err = w.store.Register(w.t.Context(), tx, p, topics, share)
		return err
	})
	return got, err
}

// TestRegister: the row of the first start decides at every other.
func TestRegister(t *testing.T) {
	t.Parallel()
	w := bare(t)
	made := pipeline("p")
	made.Settings = `{"key": ["order_id"]}`
	first, err := w.register(w.conn, made, false)
	if err != nil || first.ID == 0 || first.Settings != made.Settings {
		t.Fatal(first, err)
	}
	again := pipeline("p")
	again.Salt, again.Generation, again.Settings = [16]byte{9}, []byte("configured later"), `{"key": ["customer"]}`
	got, err := w.register(w.conn, again, false)
	if diff := cmp.Diff(first, got); err != nil || diff != "" {
		t.Error(diff, err)
	}
	for _, c := range []struct {
		name   string
		change func(*offsets.Pipeline)
		want   error
	}{
		{"group", func(p *offsets.Pipeline) { p.Group = "another" }, offsets.ErrOtherGroup},
		{"cluster", func(p *offsets.Pipeline) { p.ClusterID = "another" }, offsets.ErrOtherCluster},
		{"system", func(p *offsets.Pipeline) { p.SystemID = -78 }, offsets.ErrOtherDatabase},
	} {
		p := pipeline("p")
		c.change(&p)
		if _, err := w.register(w.conn, p, true); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

// TestRegisterShared: a second pipeline on the same group, or on the same topic and
// table, needs to say so. One of both alone is nobody's business.
func TestRegisterShared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1) // p reads orders into public.p under p-group
	for _, c := range []struct {
		name   string
		change func(*offsets.Pipeline)
		topics []string
		want   error
	}{
		{"nothing in common", func(*offsets.Pipeline) {}, []string{"payments"}, nil},
		{"the topic", func(*offsets.Pipeline) {}, []string{"payments", "orders"}, nil},
		{"the table", func(p *offsets.Pipeline) { p.SinkTables = []string{"public.p"} }, []string{"payments"}, nil},
		{"topic and table", func(p *offsets.Pipeline) { p.SinkTables = []string{"public.other", "public.p"} }, []string{"payments", "orders"}, offsets.ErrTaken},
		{"the group", func(p *offsets.Pipeline) { p.Group = "p-group" }, []string{"payments"}, offsets.ErrTaken},
		{"no table at all", func(p *offsets.Pipeline) { p.SinkTables = nil }, []string{"orders"}, nil},
	} {
		p := pipeline("q")
		c.change(&p)
		if _, err := w.register(w.conn, p, false, c.topics...); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if _, err := w.register(w.conn, p, true, c.topics...); err != nil {
			t.Errorf("%s, permitted: %v", c.name, err)
		}
		w.Exec(t, "DELETE FROM "+w.Relation("pipelines")+" WHERE name = 'q'")
	}
	var n int
	if err := w.Owner.QueryRow(t.Context(), "SELECT count(*) FROM "+w.Relation("pipelines")).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d pipelines, %v: one that was refused must leave no row", n, err)
	}
}

// TestFirstStart: four members start a new pipeline at once, or one that is known
// and has a new topic. There is one row with one salt, one topic, one position a
// partition, whoever came first.
func TestFirstStart(t *testing.T) {
	t.Parallel()
	for _, known := range []bool{false, true} {
		w := bare(t)
		if known {
			if _, err := w.register(w.conn, pipeline("p"), false); err != nil {
				t.Fatal(err)
			}
		}
		w.firstStarts()
	}
}

func (w *world) firstStarts() {
	t := w.t
	const members = 4
	type start struct {
		pipeline offsets.Pipeline
		created  bool
		err      error
	}
	starts := make(chan start, members)
	for m := range members {
		conn := w.session()
		go func() {
			p := pipeline("p")
			p.Salt = [16]byte{byte(m + 1)}
			var s start
			s.pipeline, s.created, s.err = w.firstStart(t.Context(), conn, p)
			starts <- s
		}()
	}
	created := 0
	var salts [][16]byte
	for range members {
		s := <-starts
		if s.err != nil {
			t.Error(s.err)
		}
		if s.created {
			created++
		}
		salts = append(salts, s.pipeline.Salt)
	}
	for _, s := range salts {
		if s != salts[0] || s == ([16]byte{}) {
			t.Errorf("salts differ: %x", salts)
		}
	}
	if created != 1 {
		t.Errorf("%d members created the topic", created)
	}
	w.want("after it", "0 at 7 owner none epoch 0 by ", "1 at 8 owner none epoch 0 by ")
}

func (w *world) firstStart(ctx context.Context, conn *pgx.Conn, p offsets.Pipeline) (got offsets.Pipeline, created bool, err error) {
	tx, err := pgtx.Begin(ctx, conn, patient)
	if err != nil {
		return got, false, err
	}
	defer func() {
		if err != nil {
			tx.Rollback(ctx)
		}
	}()
	if got, err = w.store.Register(ctx, tx, p, []string{"orders"}, false); err != nil {
		return got, false, err
	}
	have, err := w.store.Topics(ctx, tx, got.ID, []string{"orders"})
	if err != nil {
		return got, false, err
	}
	if created = len(have) == 0; created {
		if err = w.store.Create(ctx, tx, got.ID, ordersTopic(2), []int64{7, 8}); err != nil {
			return got, false, err
		}
	}
	return got, created, tx.Commit(ctx)
}

// TestTopics: rows by name, the older incarnation of a recreated topic first.
func TestTopics(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	again := ordersTopic(3)
	again.ID, again.Start = stream.UUID{0x01}, "latest"
	other := ordersTopic(1)
	other.ID, other.Name = stream.UUID{0x02}, "payments"
	for _, topic := range []offsets.Topic{again, other} {
		if err := w.tx(w.conn, func(tx *pgtx.Tx) error {
			return w.store.Create(t.Context(), tx, w.id, topic, make([]int64, topic.Partitions))
		}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		names []string
		want  []offsets.Topic
	}{
		{[]string{"orders"}, []offsets.Topic{ordersTopic(2), again}},
		{[]string{"payments", "orders", "nothing"}, []offsets.Topic{ordersTopic(2), again, other}},
		{[]string{"nothing"}, nil},
	} {
		var got []offsets.Topic
		if err := w.tx(w.conn, func(tx *pgtx.Tx) (err error) {
			got, err = w.store.Topics(t.Context(), tx, w.id, c.names)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%v: %s", c.names, diff)
		}
	}
}

// TestCreateTwice: a topic has one row. The second creator is told, and no
// position is touched.
func TestCreateTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	err := w.tx(w.conn, func(tx *pgtx.Tx) error {
		return w.store.Create(t.Context(), tx, w.id, ordersTopic(2), []int64{0, 0})
	})
	if pgtx.Code(err) != "23505" {
		t.Errorf("%v, want a unique violation", err)
	}
	w.want("after it", "0 at 0 owner none epoch 0 by ", "1 at 100 owner none epoch 0 by ")
}

// TestGrow: members that meet new partitions at once add them once; a member that
// knows an old count adds nothing.
func TestGrow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	ended := make(chan error, 4)
	for m := range 4 {
		conn := w.session()
		go func() {
			ended <- w.tx(conn, func(tx *pgtx.Tx) error {
				return w.store.Grow(t.Context(), tx, w.id, ordersTopic(1), []int64{int64(m), 50, 60}[:2+m%2])
			})
		}()
	}
	for range 4 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	var count int
	if err := w.Owner.QueryRow(t.Context(), "SELECT partitions FROM "+w.Relation("topics")).Scan(&count); err != nil {
		t.Fatal(err)
	}
	before := w.positions()
	if len(before) != count || count < 3 {
		t.Errorf("%d positions for %d partitions: %v", len(before), count, before)
	}
	if err := w.tx(w.conn, func(tx *pgtx.Tx) error { // the guard is lost
		return w.store.Grow(t.Context(), tx, w.id, ordersTopic(1), []int64{1, 2, 3, 4, 5})
	}); err != nil {
		t.Error(err)
	}
	w.want("after a lost guard", before...)
	if err := w.tx(w.conn, func(tx *pgtx.Tx) error {
		return w.store.Grow(t.Context(), tx, w.id, ordersTopic(int32(count)), []int64{77})
	}); err != nil {
		t.Error(err)
	}
	if after := w.positions(); len(after) != count+1 {
		t.Errorf("%v", after)
	}
}

// TestIdentify needs no right but to connect.
func TestIdentify(t *testing.T) {
	t.Parallel()
	w := bare(t)
	s, err := offsets.Identify(t.Context(), w.conn)
	if err != nil {
		t.Fatal(err)
	}
	var want offsets.Server
	if err := w.Owner.QueryRow(t.Context(), `SELECT system_identifier, lpad(to_hex(timeline_id), 8, '0'), current_setting('server_version_num')::int
		FROM pg_control_system(), pg_control_checkpoint()`).Scan(&want.SystemID, &want.Timeline, &want.Version); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, s); diff != "" {
		t.Error(diff)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := offsets.Identify(ctx, w.conn); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
