package e2e

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"effectonce/internal/pgproxytest"
)

// The statements that members are held and cut at.
const (
	fenceSQL  = ".fence("
	appendSQL = ".append_runs("
)

// faults are what happens to a member while a slice of the stream is under way.
// Each returns when the pipeline was hurt and the member runs again.
var faults = map[string]func(w *world, m *member, rng *rand.Rand){
	"kill":              (*world).faultKill,
	"freeze":            (*world).faultFreeze,
	"cut before COMMIT": (*world).faultCutBefore,
	"cut after COMMIT":  (*world).faultCutAfter,
}

// TestLedger sends a ledger through three members that are killed, frozen past
// their session and cut off around a COMMIT, and holds every committed state
// against the topic.
func TestLedger(t *testing.T) {
	const (
		seed    = 20
		records = 200_000
	)
	w := newWorld(t, 8, seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	plan := []string{"kill", "kill", "kill", "kill", "kill", "freeze", "cut before COMMIT", "cut after COMMIT"}
	rng.Shuffle(len(plan), func(i, j int) { plan[i], plan[j] = plan[j], plan[i] })
	for range 3 {
		w.start()
	}
	for i, name := range plan {
		w.balanced()
		m := w.members[rng.IntN(len(w.members))]
		t.Logf("step %d, at offset sum %d: %s %s", i, w.progress(), name, m.name)
		if err := w.stream.abort(t.Context(), 40); err != nil {
			t.Fatal(err)
		}
		w.produce(records/len(plan), func() { faults[name](w, m, rng) })
		w.exact("after "+name, nil)
		w.exact("drained after "+name, w.drained())
	}
	w.balanced()
	for _, m := range w.members {
		if code := m.stop(); code != 0 {
			t.Errorf("%s ended with exit code %d", m.name, code)
		}
	}
	w.exact("after the end", w.drained())
	if n := w.number("SELECT count(*) FROM " + w.effects); n != records*9/10 {
		t.Errorf("%d effects, want %d", n, records*9/10)
	}
}

// faultKill kills the member at a random moment of the slice's progress.
func (w *world) faultKill(m *member, rng *rand.Rand) {
	at := w.progress() + 2_000 + rng.Int64N(12_000)
	w.await("the moment to kill", func() bool { return w.progress() >= at })
	m.kill()
	m.start()
}

// faultFreeze stops the member past its session while one of its batches is on
// the way to the fence. The others take over and go on; then it resumes, and its
// batch must be rejected.
func (w *world) faultFreeze(m *member, rng *rand.Rand) {
	m.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fenceSQL, Nth: 1 + rng.IntN(5)})
	m.fired()
	m.signal(syscall.SIGSTOP)
	w.await(others(w.members, m)+" to take over", func() bool { return w.held()[m.pid()] == 0 })
	m.signal(syscall.SIGCONT)
	m.proxy.Release()
	w.await("the stale commit to be rejected", func() bool { return m.metric(`effectonce_commits_total{outcome="fenced"}`) >= 1 })
}

func (w *world) faultCutBefore(m *member, rng *rand.Rand) {
	w.cut(m, pgproxytest.CutBeforeCommit, rng, "rolled_back")
}

func (w *world) faultCutAfter(m *member, rng *rand.Rand) {
	w.cut(m, pgproxytest.CutAfterCommit, rng, "committed")
}

// cut ends the member's connection around a COMMIT; the outcome must be found out.
func (w *world) cut(m *member, f pgproxytest.Fault, rng *rand.Rand, outcome string) {
	m.proxy.Arm(f, pgproxytest.Filter{SQL: appendSQL, Nth: 1 + rng.IntN(5)})
	m.fired()
	w.await("the unknown COMMIT to be settled as "+outcome, func() bool {
		return m.metric(`effectonce_unknown_commits_total{outcome="`+outcome+`"}`) >= 1
	})
}
