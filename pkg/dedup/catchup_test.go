package dedup

import (
	"context"
	"testing"

	"golang.org/x/sync/errgroup"

	"effectonce/pkg/stream"
)

// A view is not dropped because its own seal came true between the reading of the
// log's row and the comparing: only the reading is old.
func TestCatchUpWhileTheViewIsSealed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.store.sizes = tiny
	v := w.load(0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	conn := w.Conn(t)
	var eg errgroup.Group
	eg.Go(func() error {
		for ctx.Err() == nil {
			if _, err := w.store.Seal(ctx, conn, patient, v); err != nil && ctx.Err() == nil {
				return err
			}
		}
		return nil
	})
	for n := 0; n < 300 && !t.Failed(); n++ {
		r := Run{View: v, ID: stream.NewUUID(), Fingerprints: fps(n)}
		if err := w.append(ctx, w.conn, r); err != nil {
			t.Error(err)
		}
		v.Learn(r.ID, r.Fingerprints)
		for range 5 {
			if err := w.catchUp(v, 0); err != nil {
				t.Errorf("after %d seals: %v", n, err)
			}
		}
	}
	cancel()
	if err := eg.Wait(); err != nil {
		t.Fatal(err)
	}
}
