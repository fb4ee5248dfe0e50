package e2e

import (
	"fmt"
	"testing"
)

// The group's protocol is changed by restarting its members one after another, under
// load: every way between the three, with members of both kinds in the group between
// two restarts. What runs is what all of them know, and each says what it is.
func TestRollingChangeOfTheProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6, 101)
	runs := map[string]string{"range": "range", "cooperative": "cooperative-sticky", "consumer": "consumer"}
	way := []string{"range", "cooperative", "consumer", "range", "consumer", "cooperative", "range"}
	a, b := w.start("kafka.protocol="+way[0]), w.start("kafka.protocol="+way[0])
	w.balanced()
	for i, to := range way[1:] {
		for _, m := range []*member{a, b} {
			w.produce(5_000, func() {
				at := w.progress() + 500
				w.await("the moment to restart", func() bool { return w.progress() >= at })
				if code := m.stop(); code != 0 {
					t.Errorf("exit code %d", code)
				}
				m.set = []string{"kafka.protocol=" + to}
				m.start()
			})
			w.balanced()
		}
		w.exact(fmt.Sprintf("from %s to %s", way[i], to), w.drained())
		for _, m := range []*member{a, b} {
			w.await(m.name+" to work by "+to, func() bool {
				return m.metric(`effectonce_group_protocol{protocol="`+runs[to]+`"}`) == 1 && m.get("/readyz") == "ok\n"
			})
		}
	}
}
