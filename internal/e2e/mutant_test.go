package e2e

import (
	"slices"
	"syscall"
	"testing"

	"effectonce/internal/pgproxytest"
)

// mutants are the safeguards that can be switched off, each with a history in
// which it is what saves the promise, and the checks that must see it missing.
var mutants = []struct {
	name  string
	fence string // the fence's SQL, by which a batch is held
	key   string
	play  func(w *world, fence string)
	kills []string
}{
	// A position alone guards a pipeline without keys; with keys the log's compare
	// is a second line, and only the chain of audit rows shows the breach.
	{"no-fence", "WITH moved AS", "coordinates", (*world).playStaleCommit, []string{doubled, reordered, chain}},
	{"no-fence", "WITH moved AS", "event_id", (*world).playStaleCommit, []string{chain}},
	{"learn-early", fenceSQL, "event_id", (*world).playCutCommit, []string{lost}},
}

// Each history is exact with every safeguard in place, and the checker sees it
// when its safeguard is gone.
func TestMutants(t *testing.T) {
	t.Parallel()
	for _, c := range mutants {
		t.Run(c.name+" with key "+c.key, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1, 71)
			w.key = c.key
			c.play(w, fenceSQL)
			w.exact("with every safeguard", w.truth.ends(t))

			w = newWorld(t, 1, 71)
			w.key, w.binary, w.env = c.key, mutated, []string{"EFFECTONCE_MUTANT=" + c.name}
			c.play(w, c.fence)
			found := w.findings(w.truth.ends(t))
			t.Logf("killed by %v, the first: %v", classes(found), found[:min(1, len(found))])
			for _, class := range c.kills {
				if !slices.Contains(classes(found), class) {
					t.Errorf("the checker does not see it as %s", class)
				}
			}
		})
	}
}

// playStaleCommit: A's batch is on its way to the fence when A is stopped past
// its session. B takes over and has the same records on their way. Now A's batch
// arrives, then B's.
func (w *world) playStaleCommit(fence string) {
	a := w.start()
	w.balanced()
	a.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fence})
	w.produce(150, a.fired)
	a.signal(syscall.SIGSTOP)
	b := w.member()
	b.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fence})
	b.start()
	b.fired()
	a.signal(syscall.SIGCONT)
	a.proxy.Release()
	w.await("the stale commit to be rejected, or not", func() bool {
		return a.metric(`effectonce_commits_total{outcome="fenced"}`) > 0 || w.progress() > 0
	})
	b.proxy.Release()
	w.await("the new owner to commit", func() bool { return b.metric(`effectonce_commits_total{outcome="committed"}`) > 0 })
	w.drained()
}

// playCutCommit: a COMMIT never reaches the server, and the batch is run again.
func (w *world) playCutCommit(string) {
	a := w.start()
	a.proxy.Arm(pgproxytest.CutBeforeCommit, pgproxytest.Filter{SQL: appendSQL})
	w.produce(500, a.fired)
	w.drained()
}
