package produce

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func cluster(t *testing.T, opts ...kfake.Opt) []string {
	t.Helper()
	c, err := kfake.NewCluster(append(opts, kfake.NumBrokers(1), kfake.DataDir(t.TempDir()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c.ListenAddrs()
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := cmd.ExecuteContext(ctx)
	return out.String(), err
}

// What the verb sends is read back: every record of the stream once, each repeat
// on the partition of its first copy and behind it.
func TestProduceSendsTheStream(t *testing.T) {
	brokers := cluster(t)
	out, err := run(t, "--brokers", brokers[0], "--topic", "t", "--create-topic", "--partitions", "3", "--records", "5000", "--seed", "9")
	if err != nil || !strings.Contains(out, "sent 5,000 records, 4,500 distinct orders, to t in ") {
		t.Fatalf("%v: %s", err, out)
	}
	want := map[string]int{}
	for _, o := range take(9, 10, 5000) {
		want[string(o.Key)]++
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics("t"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	first, partitions := map[string]int32{}, map[int32]bool{}
	for n := 0; n < 5000; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			n++
			want[string(r.Key)]--
			partitions[r.Partition] = true
			if p, ok := first[string(r.Key)]; ok && p != r.Partition {
				t.Errorf("%s came on partitions %d and %d", r.Key, p, r.Partition)
			}
			first[string(r.Key)] = r.Partition
		})
	}
	for key, left := range want {
		if left != 0 {
			t.Errorf("%s: %d copies missing", key, left)
		}
	}
	if len(partitions) != 3 {
		t.Errorf("records on %d partitions, want 3", len(partitions))
	}
}

func TestProduceHoldsItsRate(t *testing.T) {
	brokers := cluster(t, kfake.SeedTopics(1, "t"))
	start := time.Now()
	var sent Sent
	if err := Run(t.Context(), Job{Brokers: brokers, Topic: "t", Records: 300, Rate: 1000, Seed: 1}, &sent); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 290*time.Millisecond || sent.Records.Load() != 300 {
		t.Fatalf("%d records in %s, want 300 in 0.3 s", sent.Records.Load(), took)
	}
}

func TestProduceEndsWithItsContext(t *testing.T) {
	brokers := cluster(t, kfake.SeedTopics(1, "t"))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var sent Sent
	if err := Run(ctx, Job{Brokers: brokers, Topic: "t", Rate: 1000}, &sent); err != nil {
		t.Fatal(err)
	}
	if sent.Records.Load() == 0 {
		t.Fatal("nothing was sent before the context ended")
	}
}

func TestProduceRefuses(t *testing.T) {
	for _, tc := range []struct{ want, args string }{
		{"--repeat 91: want 0 to 90", "--repeat 91"},
		{"at least 0", "--records -1"},
		{"kafka at [127.0.0.1:1]", "--brokers 127.0.0.1:1"},
	} {
		if out, err := run(t, strings.Fields(tc.args)...); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q\n%s", tc.args, err, tc.want, out)
		}
	}
	brokers := cluster(t)
	if _, err := run(t, "--brokers", brokers[0], "--topic", "absent", "--records", "1"); err == nil ||
		!strings.Contains(err.Error(), "produce to absent") {
		t.Errorf("a topic that is not there: %v", err)
	}
}
