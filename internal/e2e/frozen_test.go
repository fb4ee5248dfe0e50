package e2e

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"effectonce/internal/pgproxytest"
)

// committedMetric counts a member's commits.
const committedMetric = `effectonce_commits_total{outcome="committed"}`

// B15: a member freezes, another takes over and moves on, then the first wakes. It
// writes nothing more under its old claim, drops what it has, and joins again.
func TestFrozenMemberWakesBehindAnothersCommits(t *testing.T) {
	t.Parallel()
	for name, moment := range map[string]func(m *member){
		"idle":                   nil,
		"before its first write": func(m *member) { m.proxy.Arm(pgproxytest.HoldBefore, pgproxytest.Filter{SQL: fenceSQL}) },
		"before COMMIT":          func(m *member) { m.proxy.Arm(pgproxytest.HoldBehind, pgproxytest.Filter{SQL: appendSQL}) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, 111)
			a := w.start()
			w.balanced()
			w.produce(500, nil)
			w.exact("before", w.drained())
			if moment != nil {
				moment(a)
				w.produce(500, a.fired)
			}
			a.signal(syscall.SIGSTOP)
			b := w.start()
			w.await("the other to hold all", func() bool { return w.held()[b.pid()] == 2 })
			w.produce(2_000, nil)
			w.await("it to commit", func() bool { return b.metric(committedMetric) >= 3 })
			w.exact("while frozen", w.drained())
			a.proxy.Release()
			a.signal(syscall.SIGCONT)
			w.balanced()
			w.produce(2_000, nil)
			w.exact("awake", w.drained())
			for _, m := range []*member{a, b} {
				w.await(m.name+" to be well", func() bool { return m.get("/readyz") == "ok\n" })
			}
			if name == "before COMMIT" {
				t.Logf("the stuck backend cost %s", b.took("waiting", "takeover"))
			}
		})
	}
}

// took is the time between the first line of one kind and the last of another of the
// member's log.
func (m *member) took(from, to string) time.Duration {
	var first, last time.Time
	for text := range strings.Lines(m.output()) {
		var line struct {
			Time    time.Time `json:"time"`
			Message string    `json:"message"`
		}
		if json.Unmarshal([]byte(text), &line) != nil {
			continue // of no line of ours
		}
		if line.Message == from && first.IsZero() {
			first = line.Time
		}
		if line.Message == to {
			last = line.Time
		}
	}
	return last.Sub(first)
}
