package dedup

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// tiny makes everything of a few keys take several blocks, statements and
// transactions.
//
// A killed builder does not keep the next one waiting.
var tiny = sizes{block: 3, copy: 2, page: 2, slice: 5, merge: 3, segment: 1000, runs: 2, clear: 3, prune: 2} //nolint:gochecknoglobals // a constant

// blade cuts a connection at one of its writes: before it, or right behind it, when
// the server does what it was told and nobody hears of it.
type blade struct {
	net.Conn
	left   atomic.Int64 // writes until the cut; negative: never
	behind bool
	fired  atomic.Bool
}

var errCut = errors.New("cut")

func (b *blade) Write(p []byte) (int, error) {
	if b.left.Add(-1) != 0 {
		return b.Conn.Write(p)
	}
	b.fired.Store(true)
	if b.behind {
		if _, err := b.Conn.Write(p); err != nil {
			return 0, err
		}
	}
	_ = b.Close() // the cut
	return 0, errCut
}

// cut opens a session that dies at its nth write from now.
func (w *world) cut(n int64, behind bool) (*pgx.Conn, *blade) {
	w.t.Helper()
	b := &blade{behind: behind}
	b.left.Store(-1)
	conn := w.through(func(c net.Conn) net.Conn {
		b.Conn = c
		return b
	})
	b.left.Store(n)
	return conn, b
}

// late holds back an answer that the server has given already.
type late struct {
	net.Conn
	armed  atomic.Bool
	skip   atomic.Int64 // answers before it
	before func()       // it is handed on
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if l.armed.Load() && l.skip.Add(-1) < 0 && l.armed.CompareAndSwap(true, false) {
		l.before()
	}
	return n, err
}

// through opens a session over a connection that wrap makes.
func (w *world) through(wrap func(net.Conn) net.Conn) *pgx.Conn {
	w.t.Helper()
	cfg, err := pgx.ParseConfig(w.RuntimeDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	var dialed atomic.Bool
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		if dialed.Swap(true) { // the driver would have the server cancel what was going on: the dead do not
			return nil, errCut
		}
		c, err := d.DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return wrap(c), nil
	}
	conn, err := pgx.ConnectConfig(w.t.Context(), cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(w.t.Context())) }) // it may be cut already
	return conn
}

// gone returns when the server has ended what a killed session was doing.
func (w *world) gone(pid uint32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for alive := true; alive; {
		if err := w.Owner.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int32(pid)).Scan(&alive); err != nil {
			w.t.Fatalf("waiting for the backend to end: %v", err)
		}
	}
}

// TestKilledAnywhere kills each background task at each of its messages to the
// server, before the server has it and after. The view that was at work (a broken
// connection) and one that is loaded afresh (a dead process) must be exact, and the
// next attempt must come to its end.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		ready func(w *world, v *View, round int) // makes the task have something to do
		task  func(w *world, conn *pgx.Conn, v *View) error
		once  bool  // what there is to do stays to be done
		least int64 // messages it has at least
	}{
		{"seal", func(*world, *View, int) {}, func(w *world, conn *pgx.Conn, v *View) error {
			_, err := w.store.Seal(w.t.Context(), conn, patient, v)
			return err
		}, false, 6},
		{"compact", func(w *world, v *View, _ int) { w.seal(v) }, func(w *world, conn *pgx.Conn, v *View) error {
			_, err := w.store.Compact(w.t.Context(), conn, patient, v, nil)
			return err
		}, false, 8},
		{"rebuild", func(w *world, v *View, _ int) { w.seal(v) }, func(w *world, conn *pgx.Conn, v *View) error {
			v.ungate()
			return w.store.Rebuild(w.t.Context(), conn, patient, v, nil)
		}, true, 3},
		{"clean", func(w *world, v *View, _ int) { w.seal(v); w.compact(v) }, func(w *world, conn *pgx.Conn, v *View) error {
			_, err := w.store.Clean(w.t.Context(), conn, patient, v.Log)
			return err
		}, false, 3},
	} {
		for _, behind := range []bool{false, true} {
			for _, then := range []sequel{dies, batchFirst, taskFirst} {
				t.Run(fmt.Sprintf("%s/behind=%v/%s", c.name, behind, then), func(t *testing.T) {
					t.Parallel()
					w := newWorld(t, 1)
					w.store.sizes = tiny
					w.killEverywhere(c.ready, c.task, behind, c.once, c.least, then)
				})
			}
		}
	}
}

// ungate takes a view's gate away.
func (v *View) ungate() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gate = nil
}

// sequel is what follows a kill.
type sequel string

const (
	dies       sequel = "process dies"
	batchFirst sequel = "batch first" // it takes what was committed unheard
	taskFirst  sequel = "task first"  // the next attempt finds out
)

func (w *world) killEverywhere(ready func(*world, *View, int), task func(*world, *pgx.Conn, *View) error, behind, once bool, least int64, then sequel) {
	v, want, next := w.load(0), map[int]bool{}, 1
	grow := func(round int) {
		var numbers []int
		for range 7 {
			numbers, want[next] = append(numbers, next), true
			next += 2
		}
		w.write(v, 'a', numbers...)
		ready(w, v, round)
	}
	for n := int64(1); ; n++ {
		for round := range 3 {
			if n == 1 || !once {
				grow(round)
			}
		}
		conn, b := w.cut(n, behind)
		pid := conn.PgConn().PID()
		err := task(w, conn, v)
		if !b.fired.Load() {
			if err != nil {
				w.t.Fatalf("nobody cut, and %v", err)
			}
			if n <= least {
				w.t.Errorf("only %d messages: the test cuts nothing", n-1)
			}
			break
		}
		w.gone(pid)
		if err == nil {
			w.t.Fatalf("cut at message %d, and no error", n)
		}
		loaded := w.load(0)
		w.knows(loaded, next+2, want)
		switch then {
		case dies:
			v = loaded
		case batchFirst:
			w.knows(v, next+2, want)
			if err := w.catchUp(v, 0); err != nil {
				w.t.Errorf("cut at message %d: catch up: %v", n, err)
			}
		case taskFirst:
		}
		if err := task(w, w.conn, v); err != nil {
			w.t.Errorf("cut at message %d: the next attempt: %v", n, err)
		}
		w.knows(v, next+2, want)
		w.clean(v)
	}
	w.tidy(v)
	w.knows(v, next+2, want)
	w.knows(w.load(0), next+2, want)
}

// tidy fails if clean-up leaves anything that no log needs.
func (w *world) tidy(v *View) {
	w.t.Helper()
	for {
		n, err := w.store.Sweep(w.t.Context(), w.conn, patient, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		closed, err := w.store.Closed(w.t.Context(), w.conn, patient, w.id)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, log := range closed {
			n += w.clean(&View{Log: log})
		}
		if n+w.clean(v) == 0 {
			break
		}
	}
	var segments, blocks, runs int
	if err := w.Owner.QueryRow(w.t.Context(), `SELECT (SELECT count(*) FROM `+w.Relation("segments")+` WHERE state <> 'live'),
		(SELECT count(*) FROM `+w.Relation("blocks")+` b WHERE NOT EXISTS (SELECT FROM `+w.Relation("segments")+` s WHERE s.id = b.segment AND s.state = 'live')),
		(SELECT count(*) FROM `+w.Relation("runs")+` r JOIN `+w.Relation("logs")+` l ON l.id = r.log WHERE r.seq <= l.sealed AND r.fingerprints IS NOT NULL)`).
		Scan(&segments, &blocks, &runs); err != nil {
		w.t.Fatal(err)
	}
	if segments+blocks+runs > 0 {
		w.t.Errorf("clean-up left %d segments, %d blocks, fingerprints of %d runs", segments, blocks, runs)
	}
}

// TestCancelled: a revoke cancels what works in the background, at any moment.
func TestCancelled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	v, want := w.load(0), map[int]bool{}
	for i := range 6 {
		for j := range 9 {
			want[i*20+j] = true
			w.write(v, 'a', i*20+j)
		}
		w.seal(v)
	}
	bare := w.load(0)
	for steps := range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		reached := 0
		conn := w.Conn(t)
		err := w.store.Rebuild(ctx, conn, patient, bare, func(_, total int64) {
			if total != int64(len(want)) {
				t.Errorf("progress of %d keys, want %d", total, len(want))
			}
			if reached++; reached > steps {
				cancel()
			}
			w.knows(bare, 125, want)
		})
		cancel()
		w.knows(bare, 125, want)
		if err == nil {
			if steps == 0 {
				t.Error("never cancelled")
			}
			return
		}
		if s := bare.Stats(); !s.Rebuild || s.Ready != 0 || s.GateBytes != 0 {
			t.Errorf("left behind: %+v", s)
		}
	}
	t.Error("a rebuild never came to its end")
}
