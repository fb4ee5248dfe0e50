package e2e

import (
	"testing"

	"effectonce/internal/pgtest"
)

// The server goes down as if the machine had lost power, in the middle of
// commits, and comes back. No member ends; COMMITs without an answer are settled.
func TestPostgresCrashes(t *testing.T) {
	t.Parallel()
	s := pgtest.StartPrivate(t)
	// The server outlives the world, which cleans up behind itself there.
	t.Run("twice", func(t *testing.T) {
		t.Parallel()
		crashTwice(t, s)
	})
}

func crashTwice(t *testing.T, s *pgtest.Private) {
	w := newWorldIn(t, pgtest.NewOn(t, s.DSN()), 4, 81)
	w.start()
	w.start()
	for range 2 {
		w.balanced()
		at := w.progress() + 3_000
		w.produce(12_000, func() {
			w.await("the moment to crash", func() bool { return w.progress() >= at })
			s.Crash(t)
			s.Start(t)
			w.db.Owner.Reset()
			w.db.Runtime.Reset()
		})
		w.exact("after a crash", nil)
		w.exact("drained", w.drained())
	}
}
