package e2e

import (
	"strings"
	"testing"
)

// events counts the member's log lines of a kind.
func (m *member) events(kind string) int {
	return strings.Count(m.output(), `"message":"`+kind+`"`)
}

// B19: a second process comes under the instance id of one that works. Kafka gives it
// the same partitions in the same generation; the first learns of it by a heartbeat,
// stops writing, and ends with a message that names the setting. The second works.
func TestTwoProcessesWithOneInstanceID(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 71)
	first, other := w.start("kafka.instance_id=pod-0"), w.start("kafka.instance_id=pod-1")
	w.balanced()
	var second *member
	w.produce(20_000, func() {
		w.await("the moment to start the second", func() bool { return w.progress() >= 4_000 })
		first.ending = true
		second = w.start("kafka.instance_id=pod-0")
		if code := first.gone(); code != exitConfig {
			t.Errorf("the fenced member ends with code %d, want %d", code, exitConfig)
		}
	})
	for _, text := range []string{"kafka.instance_id", "pod-0", "FENCED_INSTANCE_ID"} {
		if !strings.Contains(first.tail(1), text) {
			t.Errorf("the fenced member's last word does not name %s:\n%s", text, first.tail(1))
		}
	}
	w.balanced()
	w.exact("drained", w.drained())
	for _, m := range []*member{second, other} {
		if ready := m.get("/readyz"); ready != "ok\n" {
			t.Errorf("%s: %s", m.name, ready)
		}
	}
}

// A member with an instance id that is restarted in order finds its partitions as it
// left them, and nobody else loses or gets one.
func TestStaticMemberKeepsItsPartitionsOverARestart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 72)
	w.session = 2 * patience
	a, b := w.start("kafka.instance_id=pod-0"), w.start("kafka.instance_id=pod-1")
	w.balanced()
	held, moved := w.held(), b.events("takeover")+b.events("released")
	w.produce(20_000, func() {
		w.await("the moment to restart", func() bool { return w.progress() >= 4_000 })
		was := held[a.pid()]
		if code := a.stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		a.start()
		w.await("its partitions to come back", func() bool { return w.held()[a.pid()] == was })
	})
	w.exact("drained", w.drained())
	if now := b.events("takeover") + b.events("released"); now != moved {
		t.Errorf("the other member's partitions moved %d times", now-moved)
	}
}
