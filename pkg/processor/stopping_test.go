package processor_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/dedup"
)

// A record in the middle of a part stopped its partition. What came before was
// committed, and the queue went back to the ready list before the partition was
// stopped: another committer took the records behind and committed past those that
// the part had not come to. They were skipped without a row.
func TestNothingIsCommittedBehindARecordThatStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	const batch, wrong, all = 500, 750, 2000
	w.cfg.BatchRecords, w.cfg.Committers = batch, 4
	keys := map[int32][]string{}
	for i := 0; len(keys[0]) < all || len(keys[1]) < 1; i++ {
		// Long keys: naming the partitioner that fits takes a moment.
		key := strings.Repeat("k", 500) + fmt.Sprint(i)
		n := dedup.Murmur2.Partition([]byte(key), 2)
		keys[n] = append(keys[n], key)
	}
	var recs []*kgo.Record
	for i := range all {
		key := keys[0][i]
		if i == wrong {
			key = keys[1][0]
		}
		recs = append(recs, &kgo.Record{Topic: w.topic, Key: []byte(key), Value: []byte(fmt.Sprintf(`{"order_id":"o%d","amount":1}`, i))})
	}
	client := kafkatest.Client(t, w.broker, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err := client.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	w.run(t, w.stopped(fmt.Sprintf("stopped offset %d epoch 1 partitioner", wrong)))
	if !w.at(t, wrong)() {
		t.Error("the position is not at the record that stopped the partition")
	}
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != wrong {
		t.Errorf("%d rows, want the %d before it", n, wrong)
	}
}

// A lag tool showed records as unread that a member had committed just before it
// stopped: the group's offset is brought up to the position before it leaves.
func TestStoppingLeavesTheGroupsOffsetAtThePosition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.produce(t, "a", "b", "c")
	log := &lines{}
	w.cfg.Logger = zerolog.New(log)
	w.run(t, w.at(t, 3))
	for _, want := range []string{`"topic":"orders","partition":0,"epoch":1,"message":"released"}`, `"message":"stopped, left the group"}`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log does not say %s:\n%s", want, log.String())
		}
	}
	adm := kadm.NewClient(kafkatest.Client(t, w.broker))
	got, err := adm.FetchOffsets(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	if o, ok := got.Lookup(w.topic, 0); !ok || o.At != 3 || o.Metadata != "eo1 orders" {
		t.Errorf("the group's offset is %d %q, want 3", o.At, o.Metadata)
	}
}
