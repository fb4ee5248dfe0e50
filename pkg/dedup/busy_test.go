package dedup

import (
	"context"
	"errors"
	"testing"
)

// A member loads its view again because somebody else has sealed, and that ends what
// it was building itself, in the middle of its blocks. What is left must not keep
// everybody from sealing: in scope topic this is a matter of seconds, and memory
// grows meanwhile.
func TestGivenUpSegmentIsNobodysWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.write(w.load(0), 'a', 1, 2, 3)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	held, err := w.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := held.Exec(t.Context(), "LOCK TABLE "+w.Relation("blocks")+" IN SHARE MODE"); err != nil {
		t.Fatal(err)
	}
	conn, v, ended := w.Conn(t), w.load(0), make(chan error, 1)
	go func() {
		_, err := w.store.Seal(ctx, conn, patient, v)
		ended <- err
	}()
	w.blocked(conn.PgConn().PID())
	if _, err := w.store.Seal(t.Context(), w.conn, patient, w.load(0)); !errors.Is(err, ErrBusy) {
		t.Errorf("somebody else is building: %v", err)
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.seal(w.load(0))
	w.knows(w.load(0), 5, map[int]bool{1: true, 2: true, 3: true})
}
