package dedup

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// TestTopicModel plays the histories of TestModel on the log of a whole topic: four
// writers with positions of their own are sent the same keys, each in its own order.
// Mostly they commit as scope topic does: effect, then the log's lock and the runs in
// between, then the run; sometimes by the head compare alone. A batch may be prepared
// long before its commit: its keys are then compared with what was learned since.
func TestTopicModel(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, seed uint64) {
		const writers = 4
		w := newTopicWorld(t)
		s := &story{world: w, rng: fixed(seed, 2), second: w.Conn(t), scope: WholeTopic, source: make([][]int, writers)}
		for lane := range writers {
			s.members = append(s.members, &member{lane: lane})
		}
		s.play()
	})
}

// held is the middle of a transaction of scope topic.
func (s *story) held(tx *pgtx.Tx, m *member, b *batchOf, effects []pgtx.Statement) error {
	ctx := s.t.Context()
	if err := tx.Run(ctx, effects...); err != nil {
		return err
	}
	if s.rng.IntN(4) == 0 {
		if err := s.store.Follow(ctx, tx, m.v); err != nil {
			return err
		}
		if s.rng.IntN(2) == 0 { // the view's own seal takes what was learned out of the exact set
			_, err := s.store.Seal(ctx, s.second, patient, m.v)
			if err != nil && !errors.Is(err, ErrDropView) && !errors.Is(err, ErrBusy) {
				s.t.Errorf("seal: %v", err)
			}
		}
	}
	before := pgtx.Statement{Step: pgtx.StepEffect, SQL: "SET CONSTRAINTS ALL IMMEDIATE"}
	if err := s.store.Hold(ctx, tx, m.v, before); err != nil {
		return err
	}
	if b.fold.Overtaken(func(i int) bool { return b.won[i] }) {
		return errOvertaken
	}
	return nil
}

// writer is one of several members that write one log, all at once.
type writer struct {
	w            *world
	conn, keeper *pgx.Conn
	rng          *rand.Rand
	view         atomic.Pointer[View]
	keys         []int // that it is still sent
	reloads      int
	overtaken    int
}

// TestTopicWriters: four members at once, each sent every key, in an order of its own
// and some twice. Whatever they seal, merge and inherit from each other meanwhile, and
// while the views that were dropped are still worked on, each key is applied once.
func TestTopicWriters(t *testing.T) {
	t.Parallel()
	w := newTopicWorld(t)
	w.store.sizes.block, w.store.sizes.copy, w.store.sizes.slice, w.store.sizes.runs = 10, 4, 100, 20
	w.store = w.store.Cached(newShelf())
	w.Table(t, "effects", "key bigint")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const keys = 900
	eg, ctx := errgroup.WithContext(t.Context())
	writers := make([]*writer, 4)
	for i := range writers {
		m := &writer{w: w, conn: w.Conn(t), keeper: w.Conn(t), rng: fixed(seed, uint64(i))}
		m.keys = append(m.rng.Perm(keys), m.rng.Perm(keys)[:keys/10]...)
		writers[i] = m
		m.load(t)
		eg.Go(func() error {
			ctx, cancel := context.WithCancel(ctx)
			var tend errgroup.Group
			tend.Go(func() error { return m.tend(ctx) })
			err := m.write(ctx, t)
			cancel()
			return errors.Join(err, tend.Wait())
		})
	}
	if err := eg.Wait(); err != nil {
		t.Fatal(err)
	}
	var n, distinct int
	if err := w.Owner.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT key) FROM effects").Scan(&n, &distinct); err != nil {
		t.Fatal(err)
	}
	reloads, overtaken := 0, 0
	for _, m := range writers {
		reloads, overtaken = reloads+m.reloads, overtaken+m.overtaken
	}
	if n != keys || distinct != keys || reloads < 10 || overtaken < 3 {
		t.Errorf("%d effects of %d keys, want %d of each; %d reloads, %d overtaken", n, distinct, keys, reloads, overtaken)
	}
	all := map[int]bool{}
	for k := range keys {
		all[k] = true
	}
	w.knows(w.load(WholeTopic), keys+50, all)
}

func (m *writer) load(t *testing.T) {
	t.Helper()
	old := m.view.Load()
	v, err := m.w.store.Load(t.Context(), m.conn, patient, m.w.id, m.w.part(WholeTopic), old)
	if err != nil {
		t.Error(err)
	}
	m.view.Store(v)
	m.reloads++
}

// tend works on the view that was current when it looked.
func (m *writer) tend(ctx context.Context) error {
	for ctx.Err() == nil {
		v := m.view.Load()
		for _, do := range []func() error{
			func() error { _, err := m.w.store.Seal(ctx, m.keeper, patient, v); return err },
			func() error { _, err := m.w.store.Compact(ctx, m.keeper, patient, v, nil); return err },
			func() error { return m.w.store.Rebuild(ctx, m.keeper, patient, v, nil) },
			func() error { return m.w.store.Offer(ctx, m.keeper, patient, v) },
			func() error { _, err := m.w.store.Clean(ctx, m.keeper, patient, v.Log); return err },
		} {
			if err := do(); err != nil && ctx.Err() == nil && !errors.Is(err, ErrDropView) && !errors.Is(err, ErrBusy) && pgtx.Code(err) != pgtx.CodeSegment {
				return err
			}
		}
	}
	return nil
}

func (m *writer) write(ctx context.Context, t *testing.T) error {
	for len(m.keys) > 0 {
		n := min(1+m.rng.IntN(12), len(m.keys))
		done, err := m.batch(ctx, m.keys[:n])
		switch {
		case errors.Is(err, ErrDropView):
			m.load(t)
		case err != nil:
			return err
		case done:
			m.keys = m.keys[n:]
		}
	}
	return nil
}

// batch applies what is new of these keys; false without an error: once more.
func (m *writer) batch(ctx context.Context, keys []int) (done bool, err error) {
	s, v, won := m.w.store, m.view.Load(), map[int]bool{}
	f, fresh := Fold{}, []int64{}
	f.Reset(0)
	for _, k := range keys {
		f.Add(fpOf(k))
	}
	if f.Check(v) > 0 {
		if err := s.LookUp(ctx, m.conn, patient, &f); err != nil {
			return false, err
		}
		if f.Open() {
			return false, s.CatchUp(ctx, m.conn, patient, m.w.id, m.w.part(WholeTopic), v)
		}
	}
	for _, i := range f.Winners(nil, 0, len(keys), func(int) bool { return false }, nil) {
		won[i], fresh = true, append(fresh, int64(keys[i]))
	}
	var xact string
	tx, err := pgtx.Begin(ctx, m.conn, patient, pgtx.Statement{
		SQL: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	}, pgtx.Statement{
		Step: pgtx.StepEffect, SQL: "INSERT INTO " + pgx.Identifier{m.w.User, "effects"}.Sanitize() + " SELECT unnest($1)",
		Params: []pgtx.Param{pgtx.Int8s(fresh)},
	})
	if err != nil {
		return false, err
	}
	err = s.Hold(ctx, tx, v)
	if err == nil && f.Overtaken(func(i int) bool { return won[i] }) {
		m.overtaken++
		tx.Rollback(ctx)
		return false, nil
	}
	if err != nil {
		tx.Rollback(ctx)
		return false, err
	}
	r := Run{View: v, ID: stream.NewUUID(), Fingerprints: f.Run(func(i int) bool { return won[i] })}
	if err := tx.Commit(ctx, s.Append(xact, []Run{r})); err != nil {
		return false, err
	}
	v.Learn(r.ID, r.Fingerprints)
	return true, nil
}
