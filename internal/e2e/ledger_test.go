package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
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

// history is one way through the faults, from a seed.
type history struct {
	seed    uint64
	records int
	plan    []string
	fence   string // the fence's SQL
}

// wholeHistory is what TestLedger plays: five kills, a freeze and the two cuts, in
// an order of the seed's; while editing, one kill and a quarter of the records.
func wholeHistory(seed uint64) history {
	h := history{seed, 200_000, []string{"freeze", "cut before COMMIT", "cut after COMMIT", "kill", "kill", "kill", "kill", "kill"}, fenceSQL}
	if testing.Short() {
		h.records, h.plan = 50_000, h.plan[:4]
	}
	rand.New(rand.NewPCG(seed, 2)).Shuffle(len(h.plan), func(i, j int) { h.plan[i], h.plan[j] = h.plan[j], h.plan[i] })
	return h
}

// seeds is how many histories are played: EFFECTONCE_E2E_SEEDS, else one.
func seeds(t *testing.T) uint64 {
	t.Helper()
	text := os.Getenv("EFFECTONCE_E2E_SEEDS")
	if text == "" {
		return 1
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatalf("EFFECTONCE_E2E_SEEDS: %v", err)
	}
	return n
}

// TestLedger sends a ledger through three members that are killed, frozen past
// their session and cut off around a COMMIT, and holds every committed state
// against the topic.
func TestLedger(t *testing.T) {
	const first = 20
	for seed := uint64(first); seed < first+seeds(t); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			h := wholeHistory(seed)
			w := newWorld(t, 8, seed)
			w.mustBe(w.play(h))
			for _, m := range w.members {
				if m.running() && m.stop() != 0 {
					t.Errorf("%s ended with %v", m.name, m.cmd.ProcessState)
				}
			}
			w.exact("after the end", w.drained())
			if n := w.number("SELECT count(*) FROM " + w.effects); n != int64(w.stream.made-w.stream.made/10) {
				t.Errorf("%d effects of %d records, a tenth of them repeats", n, w.stream.made)
			}
		})
	}
}

// TestLedgerSealed plays a history with memory for hardly any keys: they are sealed
// into segments, merged, looked up and rebuilt behind filters under the same faults.
func TestLedgerSealed(t *testing.T) {
	const first = 40
	for seed := uint64(first); seed < first+seeds(t); seed++ {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			h := history{seed, 100_000, []string{"kill", "cut before COMMIT", "kill", "cut after COMMIT", "freeze"}, fenceSQL}
			w := newWorld(t, 4, seed)
			w.memory = 2
			w.mustBe(w.play(h))
			w.merged()
		})
	}
}

// merged requires that keys were sealed and segments merged.
func (w *world) merged() {
	w.t.Helper()
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("segments") + " WHERE state = 'live' AND tier > 0"); n == 0 {
		w.t.Error("nothing was sealed and merged")
	}
}

// play plays a history and returns the first findings, if there are any.
func (w *world) play(h history) (when string, found []finding) {
	t := w.t
	t.Helper()
	rng := rand.New(rand.NewPCG(h.seed, 1))
	for range 3 {
		w.start()
	}
	for i, name := range h.plan {
		w.balanced()
		m := w.members[rng.IntN(len(w.members))]
		t.Logf("step %d, at offset sum %d: %s %s", i, w.progress(), name, m.name)
		if err := w.stream.abort(t.Context(), 40); err != nil {
			t.Fatal(err)
		}
		w.produce(h.records/len(h.plan), func() { faults[name](w, m, rng) })
		if found = w.findings(nil); len(found) > 0 {
			return "after " + name, found
		}
		if found = w.findings(w.drained()); len(found) > 0 {
			return "drained after " + name, found
		}
		for _, m := range w.members {
			w.overtaken += m.metric(`effectonce_commits_total{outcome="log_moved"}`) + m.metric(`effectonce_commits_total{outcome="isolate"}`)
		}
	}
	w.balanced()
	for _, m := range w.members[1:] {
		if code := m.stop(); code != 0 {
			t.Errorf("%s ended with exit code %d", m.name, code)
		}
	}
	w.balanced()
	w.duel(w.members[0], h.fence)
	return "after the duel", w.findings(w.drained())
}

// duel: a batch of A's is on its way to the fence when A is stopped past its
// session. B takes over and has the same records on their way. Now A's batch
// arrives, then B's. Nothing was committed between, so nothing but the fence tells
// A's claim from B's.
func (w *world) duel(a *member, fence string) {
	rejected := a.rejected()
	a.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fence})
	w.produce(2_000, a.fired)
	a.signal(syscall.SIGSTOP)
	w.committers = 1 // so that what is held holds all of B
	b := w.member()
	b.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fence})
	b.start()
	w.await("the takeover of everything", func() bool { return w.held()[b.pid()] == int(w.partitions) })
	b.fired()
	before := w.progress()
	a.signal(syscall.SIGCONT)
	a.proxy.Release()
	w.await("the stale commit to be rejected, or not", func() bool {
		return a.rejected() > rejected || w.progress() != before
	})
	b.proxy.Release()
	w.await("the new owner to commit", func() bool { return b.metric(`effectonce_commits_total{outcome="committed"}`) > 0 })
}

// rejected is how many commits the fence refused, of a claim that stood and of one that
// was being handed over: a member that resumes may hear of either first.
func (m *member) rejected() float64 {
	return m.metric(`effectonce_commits_total{outcome="fenced"}`) + m.metric(`effectonce_commits_total{outcome="handed_over"}`)
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
	rejected := m.rejected()
	m.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fenceSQL, Nth: 1 + rng.IntN(5)})
	m.fired()
	m.signal(syscall.SIGSTOP)
	w.await(others(w.members, m)+" to take over", func() bool { return w.held()[m.pid()] == 0 })
	m.signal(syscall.SIGCONT)
	m.proxy.Release()
	w.await("the stale commit to be rejected", func() bool { return m.rejected() > rejected })
}

func (w *world) faultCutBefore(m *member, rng *rand.Rand) {
	w.cut(m, pgproxytest.CutBeforeCommit, rng, "rolled_back")
}

func (w *world) faultCutAfter(m *member, rng *rand.Rand) {
	w.cut(m, pgproxytest.CutAfterCommit, rng, "committed")
}

// cut ends the member's connection around a COMMIT; the outcome must be found out.
func (w *world) cut(m *member, f pgproxytest.Fault, rng *rand.Rand, outcome string) {
	settled := `effectonce_unknown_commits_total{outcome="` + outcome + `"}`
	before := m.metric(settled)
	m.proxy.Arm(f, pgproxytest.Filter{SQL: appendSQL, Nth: 1 + rng.IntN(5)})
	m.fired()
	w.await("the unknown COMMIT to be settled as "+outcome, func() bool { return m.metric(settled) > before })
}
