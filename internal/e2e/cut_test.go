package e2e

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"effectonce/internal/cuttest"
	"effectonce/internal/kafkatest"
)

// private runs the test on a broker of its own, which the member that is started with
// the returned setting reaches by way of the proxy only.
func private(t *testing.T) (broker *kafkatest.Private, way *cuttest.Proxy, setting string) {
	t.Helper()
	broker = kafkatest.StartPrivate(t, nil, kafkatest.Listener{Name: "CUT", Protocol: "PLAINTEXT", Proxied: true})
	t.Setenv("EFFECTONCE_TEST_KAFKA", broker.Addr)
	way = broker.Proxy("CUT")
	return broker, way, "kafka.brokers=" + way.Addr()
}

// A member loses Kafka, and with it the group, but not Postgres. It hears nothing of
// the next owner but at the fence, and must leave the partitions alone from there: its
// assignment stands for ever as far as it can know, and each takeover of its own would
// fence the true owner, until that one stops. When the network is back it joins again.
func TestCutOffFromKafka(t *testing.T) {
	broker, way, brokers := private(t)
	// The broker outlives the world, which cleans up behind itself there.
	life := t
	t.Run("and mended", func(t *testing.T) {
		cutOffFromKafka(t, way, brokers, func() { broker.Restart(life) })
	})
}

func cutOffFromKafka(t *testing.T, way *cuttest.Proxy, brokers string, restart func()) {
	w := newWorld(t, 4, 91)
	a, b := w.start(brokers, "shutdown_grace=3s"), w.start()
	w.balanced()
	w.produce(20_000, func() {
		w.await("the moment to cut", func() bool { return w.progress() >= 4_000 })
		way.Cut()
		w.await("the other member to hold all", func() bool { return w.held()[b.pid()] == 4 })
	})
	w.await("the member to be fenced", func() bool { return a.events("fenced") > 0 })
	fenced := time.Now() // a second takeover would come 3 s later
	w.await("it to leave the partitions alone", func() bool {
		if n := w.held()[a.pid()]; n > 0 {
			t.Fatalf("the member that is cut off took %d partitions back", n)
		}
		return time.Since(fenced) > 5*time.Second
	})
	w.exact("cut off", w.drained())
	w.await("the member to say so", func() bool { return strings.Contains(a.get("/readyz"), "answered no heartbeat") })
	way.Mend()
	w.balanced()
	w.resumes("the network came back", func() { w.produce(4_000, nil) })
	w.exact("mended", w.drained())
	w.await("the member to be well", func() bool { return a.get("/readyz") == "ok\n" })
	// B72: Kafka as a whole goes away and comes back, coordinator and leaders.
	for range seeds(t) {
		w.produce(8_000, func() {
			w.await("the moment to restart", func() bool { return w.progress() > 0 })
			restart()
		})
		w.resumes("the broker was restarted", func() { w.exact("restarted", w.drained()) })
		w.balanced()
	}
	// B71: while Kafka hangs a member cannot leave the group. It ends all the same.
	way.Cut()
	began := time.Now()
	if code := a.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(began); took > 12*time.Second { // 3 s, on a machine as it may be
		t.Errorf("it took %s to end", took)
	}
	for _, m := range []*member{a, b} {
		if n := m.events("stopped"); n > 0 {
			t.Errorf("%s stopped %d partitions", m.name, n)
		}
	}
}

// A member loses Postgres but not Kafka: its partitions wait for it, the others' go
// on. A transaction that it left behind on the server does not matter: when the
// network is back it settles what it does not know.
func TestCutOffFromPostgres(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 4, 92)
	way := cuttest.Start(t, w.postgres())
	dsn, err := url.Parse(w.db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	dsn.Host = way.Addr()
	a := w.start("postgres.dsn=" + dsn.String())
	w.start()
	w.balanced()
	w.produce(20_000, func() {
		w.await("the moment to cut", func() bool { return w.progress() >= 4_000 })
		way.Cut()
		w.exact("just cut off", nil)
	})
	w.await("the member to say so", func() bool { return strings.Contains(a.output(), "database does not answer the watch") })
	w.exact("cut off", nil)
	way.Mend()
	w.exact("mended", w.drained())
	w.await("the member to be well", func() bool { return a.get("/readyz") == "ok\n" })
}

// resumes says how long all partitions took to go on behind a fault.
func (w *world) resumes(after string, until func()) {
	w.t.Helper()
	began := time.Now()
	until()
	w.t.Logf("after %s everything was applied within %s", after, time.Since(began))
}
