package e2e

import (
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
)

// exitConfig says that an operator must decide something first.
const exitConfig = 78

// refuses starts the member, which must end by itself and say why.
func refuses(t *testing.T, m *member, says ...string) {
	t.Helper()
	m.start()
	if code := m.gone(); code != exitConfig {
		t.Errorf("exit code %d, want %d", code, exitConfig)
	}
	for _, text := range says {
		if !strings.Contains(m.output(), text) {
			t.Errorf("does not say %q", text)
		}
	}
	if t.Failed() {
		t.Log(m.tail(5))
	}
}

// A topic that was deleted and created again has the positions' name and other
// records.
func TestRefusesRecreatedTopic(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 61)
	m := w.start()
	w.produce(100, nil)
	w.drained()
	if code := m.stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	admin := kadm.NewClient(w.stream.client)
	if _, err := admin.DeleteTopic(t.Context(), w.topic); err != nil {
		t.Fatal(err)
	}
	await(t, "the topic's name to be free", func() bool {
		_, err := admin.CreateTopic(t.Context(), w.partitions, 1, nil, w.topic)
		return err == nil
	})
	refuses(t, m, "deleted and created again", w.topic)
}

// The group has offsets of whoever worked before: to go on there or to begin at
// the start is not for the program to choose.
func TestRefusesForeignOffsets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 62)
	w.produce(100, nil)
	offsets := kadm.Offsets{}
	offsets.Add(kadm.Offset{Topic: w.topic, Partition: 0, At: 40, LeaderEpoch: -1})
	if err := kadm.NewClient(w.stream.client).CommitAllOffsets(t.Context(), w.group, offsets); err != nil {
		t.Fatal(err)
	}
	refuses(t, w.member(), "kafka.start: committed", "kafka.start: earliest")
	if n := w.number("SELECT count(*) FROM " + w.db.Relation("positions")); n != 0 {
		t.Errorf("%d positions were made all the same", n)
	}
}

func TestRefusesMissingSchema(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, 63)
	m := w.member()
	settings, err := os.ReadFile(m.config)
	if err != nil {
		t.Fatal(err)
	}
	other := strings.Replace(string(settings), `schema: "`+w.db.Schema+`"`, `schema: "eo_nowhere"`, 1)
	if err := os.WriteFile(m.config, []byte(other), 0o600); err != nil {
		t.Fatal(err)
	}
	refuses(t, m, "eo_nowhere", "migrate")
}
