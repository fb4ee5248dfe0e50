package rebalance_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

func TestFind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 0)
	cluster, topics, err := rebalance.Find(t.Context(), w.adm, []string{topic})
	if err != nil || cluster == "" {
		t.Fatal(cluster, err)
	}
	info := w.fake.TopicInfo(topic)
	want := map[string]rebalance.Topic{topic: {ID: stream.UUID(info.TopicID), Name: topic, Partitions: 3}}
	if diff := cmp.Diff(want, topics); diff != "" {
		t.Error(diff)
	}
	if _, _, err := rebalance.Find(t.Context(), w.adm, []string{topic, "payments"}); !errors.Is(err, rebalance.ErrNoTopic) || !strings.Contains(err.Error(), "payments") {
		t.Errorf("%v", err)
	}
	if w.fake.TopicInfo("payments") != nil {
		t.Error("asking for a topic made it")
	}
}

// TestStarts: one offset a partition, or a refusal, before any row exists.
func TestStarts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 3, 0, 0, 0)
	if err := w.fake.DeleteRecords(topic, 1, 4); err != nil {
		t.Fatal(err)
	}
	moment := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	client := kafkatest.Client(t, w.addr(), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for _, r := range []*kgo.Record{
		{Topic: topic, Partition: 0, Timestamp: moment.Add(-time.Minute)},
		{Topic: topic, Partition: 0, Timestamp: moment},
		{Topic: topic, Partition: 0, Timestamp: moment.Add(time.Minute)},
		{Topic: topic, Partition: 1, Timestamp: moment.Add(time.Minute)},
	} {
		if err := client.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	w.commit("foreign", 1, 7, "")
	w.commit("foreign-0", 2, 0, "")
	w.commit("own", 0, 3, "")
	w.commit("own", 2, 5, ours)
	w.commit("other-pipeline", 0, 3, ours+"q")
	for _, c := range []struct {
		name  string
		group string
		start rebalance.Start
		want  []int64
		err   error
	}{
		{"unset", "new", rebalance.Start{}, []int64{0, 4, 0}, nil},
		{"earliest", "new", rebalance.Start{Kind: "earliest"}, []int64{0, 4, 0}, nil},
		{"latest", "new", rebalance.Start{Kind: "latest"}, []int64{13, 11, 10}, nil},
		{"a time", "new", rebalance.Start{Kind: "time", Time: moment}, []int64{11, 10, 10}, nil},
		{"a time behind all", "new", rebalance.Start{Kind: "time", Time: moment.Add(time.Hour)}, []int64{13, 11, 10}, nil},
		{"committed without commits", "new", rebalance.Start{Kind: "committed"}, []int64{0, 4, 0}, nil},
		{"committed", "foreign", rebalance.Start{Kind: "committed"}, []int64{0, 7, 0}, nil},
		{"earliest over foreign offsets", "foreign", rebalance.Start{Kind: "earliest"}, []int64{0, 4, 0}, nil},
		{"unset over foreign offsets", "foreign", rebalance.Start{}, nil, rebalance.ErrGroupInUse},
		{"unset over a foreign offset 0", "foreign-0", rebalance.Start{}, nil, rebalance.ErrGroupInUse},
		{"unset over another pipeline's", "other-pipeline", rebalance.Start{}, nil, rebalance.ErrGroupInUse},
		{"unset over ours", "own", rebalance.Start{}, nil, rebalance.ErrOurOffsets},
		{"earliest over ours", "own", rebalance.Start{Kind: "earliest"}, nil, rebalance.ErrOurOffsets},
		{"committed over ours", "own", rebalance.Start{Kind: "committed"}, nil, rebalance.ErrOurOffsets},
	} {
		got, err := rebalance.Starts(t.Context(), w.adm, pipeline, c.group, w.topic, c.start)
		if !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: %s", c.name, diff)
		}
		if errors.Is(c.err, rebalance.ErrGroupInUse) && (!strings.Contains(err.Error(), "start: committed") || !strings.Contains(err.Error(), "start: earliest")) {
			t.Errorf("%s: the choices are not named: %v", c.name, err)
		}
	}
	w.topic.Partitions = 4
	if _, err := rebalance.Starts(t.Context(), w.adm, pipeline, "new", w.topic, rebalance.Start{}); err == nil || strings.Contains(err.Error(), "%!") {
		t.Errorf("a partition that Kafka does not know: %v", err)
	}
}

// TestStartsUnreadable: an offset that could not be read may be anybody's.
func TestStartsUnreadable(t *testing.T) {
	t.Parallel()
	of := func(n int32, at int64, metadata string, err error) kadm.OffsetResponse {
		return kadm.OffsetResponse{Offset: kadm.Offset{Topic: topic, Partition: n, At: at, Metadata: metadata}, Err: err}
	}
	for _, kind := range []string{"", "earliest", "committed"} {
		got := map[int32]kadm.OffsetResponse{0: of(0, -1, "", nil), 1: of(1, -1, "", kerr.TopicAuthorizationFailed)}
		if err := rebalance.MayStart(got, pipeline, "g", rebalance.Start{Kind: kind}); !errors.Is(err, kerr.TopicAuthorizationFailed) {
			t.Errorf("%q: %v", kind, err)
		}
		delete(got, 1)
		if err := rebalance.MayStart(got, pipeline, "g", rebalance.Start{Kind: kind}); err != nil {
			t.Errorf("%q: no offset at all: %v", kind, err)
		}
		// Ours decides, wherever it stands among others.
		got[1], got[2], got[3] = of(1, 4, "", nil), of(2, 0, ours, nil), of(3, 1, "", nil)
		if err := rebalance.MayStart(got, pipeline, "g", rebalance.Start{Kind: kind}); !errors.Is(err, rebalance.ErrOurOffsets) {
			t.Errorf("%q: %v", kind, err)
		}
	}
}

func TestStartString(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for want, s := range map[string]rebalance.Start{
		"earliest": {}, "latest": {Kind: "latest"}, "committed": {Kind: "committed"},
		"2026-01-02T03:04:05.000000006Z": {Kind: "time", Time: at},
	} {
		if s.String() != want {
			t.Errorf("%+v is %q, want %q", s, s.String(), want)
		}
	}
}
