package partitionscmd

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/internal/kafkatest"
	"effectonce/pkg/processor"
)

// ls is the one partition as JSON has it.
func (w *world) ls(t *testing.T) (processor.PartitionStatus, processor.PartitionList) {
	t.Helper()
	out, err := w.do(t, "ls", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list processor.PartitionList
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Partitions) != 1 {
		t.Fatalf("%s", out)
	}
	return list.Partitions[0], list
}

// says looks for parts of what ls prints.
func (w *world) says(t *testing.T, parts ...string) {
	t.Helper()
	out, err := w.do(t, "ls")
	for _, part := range parts {
		if err != nil || !strings.Contains(out, part) {
			t.Errorf("%q is not in\n%s%v", part, out, err)
		}
	}
}

// What an operator sees of one partition in each of its states.
func TestLs(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	w.Produce(t, 10, 12)
	if p, list := w.ls(t); p.State != "running" || p.Position != 10 || p.End != 12 || p.Lag != 2 || p.Epoch != 1 || p.Holder == "" || p.Last.IsZero() || list.Kafka != "" {
		t.Errorf("%+v %s", p, list.Kafka)
	}
	w.Exec(t, "INSERT INTO "+w.Relation("stops")+" SELECT pipeline, topic_id, partition, owner, 'setup', 'no table', 'mend it', next_offset, holder FROM "+w.Relation("positions"))
	if p, _ := w.ls(t); p.State != "stopped" || p.Cause != "setup" || p.What != "no table" || p.Since.IsZero() {
		t.Errorf("%+v", p)
	}
	w.says(t, "orders/0   stopped  10        [0, 12)  2", "orders/0, stopped since ", "setup: no table\n  mend it\n")
	w.Exec(t, "UPDATE "+w.Relation("positions")+" SET owner = NULL") // decided about
	if p, _ := w.ls(t); p.State != "unclaimed" || p.Cause != "" {
		t.Errorf("%+v", p)
	}
	if err := w.Fake.DeleteRecords("orders", 0, 11); err != nil {
		t.Fatal(err)
	}
	w.says(t, "[11, 12)", "out_of_range: offsets 10 to 10 are gone from Kafka", "processor partitions resolve orders/0 --accept-loss goes on at 11")
	if p, _ := w.ls(t); p.Lost == nil || p.Lost.From != 10 || p.Lost.To != 11 {
		t.Errorf("%+v", p)
	}
	w.Exec(t, "DELETE FROM "+w.Relation("positions"))
	if p, _ := w.ls(t); p.State != "missing" || p.Position != -1 {
		t.Errorf("%+v", p)
	}
}

// A partition without a position is not left out.
func TestLsOfAMissingPosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	w.Exec(t, "UPDATE "+w.Relation("positions")+" SET partition = 1; UPDATE "+w.Relation("topics")+" SET partitions = 2")
	out, err := w.do(t, "ls")
	if err != nil || !strings.Contains(out, "orders/0   missing  ?") || !strings.Contains(out, "orders/1   running  10") {
		t.Errorf("%s%v", out, err)
	}
}

// B06: a topic that was deleted and created again has none of the old positions.
func TestLsOfATopicThatIsGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	adm := kadm.NewClient(kafkatest.Client(t, w.Broker))
	if _, err := adm.DeleteTopic(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	if p, _ := w.ls(t); p.State != "gone" || p.Position != 10 || p.End != -1 || p.Cause != "recreated_topic" {
		t.Errorf("%+v", p)
	}
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if p, _ := w.ls(t); p.State != "gone" || p.Position != 10 || p.End != -1 {
		t.Errorf("%+v", p)
	}
}

// While Kafka is down, Postgres is shown; while Postgres is, nothing can be.
func TestLsWhileAServiceIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	w.Broker = "127.0.0.1:1"
	if p, list := w.ls(t); p.State != "running" || p.Position != 10 || p.End != -1 || p.Lag != -1 || list.Kafka == "" {
		t.Errorf("%+v %s", p, list.Kafka)
	}
	w.says(t, "Kafka does not answer, this is what Postgres knows")
	w.RuntimeDSN = "postgres://nobody@127.0.0.1:1/none"
	if _, err := w.do(t, "ls"); exit.Code(err) != exit.Unavailable {
		t.Errorf("%d, %v", exit.Code(err), err)
	}
}

// A pipeline that never started has nothing to show.
func TestLsOfNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	w.Exec(t, "DELETE FROM "+w.Relation("runs")+"; DELETE FROM "+w.Relation("logs")+"; DELETE FROM "+w.Relation("positions")+"; DELETE FROM "+w.Relation("topics")+"; DELETE FROM "+w.Relation("pipelines"))
	if _, err := w.do(t, "ls"); exit.Code(err) != exit.Config || !strings.Contains(err.Error(), "never started") {
		t.Errorf("%v", err)
	}
}
