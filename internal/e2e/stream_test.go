package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
)

const accounts = 997

// stream produces a ledger. The same seed gives the same records in the same
// order of each account. A tenth of them repeat an earlier event: half soon after,
// half long after, and a fifth of those with another content under the same id.
type stream struct {
	topic  string
	client *kgo.Client
	placed *kgo.Client // sends to the partition that a record names
	aborts *kgo.Client // transactional: what it writes is never committed

	scatter int // over this many partitions; 0: by the account

	rng  *rand.Rand
	seq  [accounts]int64
	past []ledger
	made int
}

func newStream(t *testing.T, topic string, seed uint64) *stream {
	t.Helper()
	addr := kafkatest.Broker(t)
	return &stream{
		topic: topic, rng: rand.New(rand.NewPCG(seed, 0x1ed6e7)),
		client: kafkatest.Client(t, addr),
		placed: kafkatest.Client(t, addr, kgo.RecordPartitioner(kgo.ManualPartitioner())),
		aborts: kafkatest.Client(t, addr, kgo.TransactionalID("aborts-"+topic)),
	}
}

// line is what stands in a record.
type line struct {
	ledger
	Payload string `json:"payload"`
}

func (s *stream) next() ledger {
	s.made++
	var l ledger
	if s.made%10 == 0 {
		reach := len(s.past)
		if s.rng.IntN(2) == 0 {
			reach = min(reach, 100)
		}
		if l = s.past[len(s.past)-1-s.rng.IntN(reach)]; s.rng.IntN(5) == 0 {
			l.Delta = -l.Delta - 1
		}
	} else {
		a := s.rng.IntN(accounts)
		s.seq[a]++
		l = ledger{fmt.Sprintf("e-%07d", s.made), fmt.Sprintf("account-%d", a), s.seq[a], s.rng.Int64N(20_001) - 10_000}
		s.past = append(s.past, l)
	}
	return l
}

func (s *stream) record(l ledger) *kgo.Record {
	value, _ := json.Marshal(line{l, strings.Repeat("x", int(l.Seq%60))}) // cannot fail
	return &kgo.Record{Topic: s.topic, Key: []byte(l.Account), Value: value}
}

// scattered are the records of an event on partitions of no account's: mostly one,
// for one in eight two or three, and in a burst now and then one on each.
func (s *stream) scattered(l ledger) []*kgo.Record {
	copies := 1
	switch {
	case s.made%2000 < 100:
		copies = s.scatter
	case s.rng.IntN(8) == 0:
		copies = 2 + s.rng.IntN(2)
	}
	recs := make([]*kgo.Record, 0, copies)
	for _, p := range s.rng.Perm(s.scatter)[:copies] {
		r := s.record(l)
		r.Partition = int32(p)
		switch s.rng.IntN(3) {
		case 0:
			r.Key = nil
		case 1:
			r.Key = []byte(strconv.Itoa(s.rng.Int()))
		}
		recs = append(recs, r)
	}
	return recs
}

// send produces the next n events and returns when all are acknowledged.
func (s *stream) send(ctx context.Context, n int) error {
	var mu sync.Mutex
	var failed error
	done := func(_ *kgo.Record, err error) {
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	}
	for range n {
		l := s.next()
		if s.scatter == 0 {
			s.client.Produce(ctx, s.record(l), done)
			continue
		}
		for _, r := range s.scattered(l) {
			s.placed.Produce(ctx, r, done)
		}
	}
	for _, c := range []*kgo.Client{s.client, s.placed} {
		if err := c.Flush(ctx); err != nil {
			return fmt.Errorf("produce: %w", err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// abort produces n records in a Kafka transaction that is aborted.
func (s *stream) abort(ctx context.Context, n int) error {
	if err := s.aborts.BeginTransaction(); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	for i := range n {
		account := fmt.Sprintf("account-%d", s.rng.IntN(accounts))
		s.aborts.Produce(ctx, s.record(ledger{fmt.Sprintf("aborted-%d-%d", s.made, i), account, 0, 1}), nil)
	}
	if err := s.aborts.Flush(ctx); err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	if err := s.aborts.EndTransaction(ctx, kgo.TryAbort); err != nil {
		return fmt.Errorf("abort: %w", err)
	}
	return nil
}

// truth reads the topic as any client would: no group, committed records only.
type truth struct {
	topic  string
	client *kgo.Client
	admin  *kadm.Client
	recs   map[int32][]record
	next   map[int32]int64
}

func newTruth(t *testing.T, topic string, partitions int32) *truth {
	t.Helper()
	from := map[int32]kgo.Offset{}
	for p := range partitions {
		from[p] = kgo.NewOffset().At(0)
	}
	client := kafkatest.Client(t, kafkatest.Broker(t), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.FetchMaxWait(100*time.Millisecond))
	return &truth{topic, client, kadm.NewClient(client), map[int32][]record{}, map[int32]int64{}}
}

// ends are the last stable offsets, once no transaction is open any more: the
// marker of an abort is written behind the answer to it.
func (r *truth) ends(t *testing.T) map[int32]int64 {
	t.Helper()
	ends := map[int32]int64{}
	await(t, "all Kafka transactions to end", func() bool {
		stable, err := r.admin.ListCommittedOffsets(t.Context(), r.topic)
		if err != nil {
			t.Fatal(err)
		}
		last, err := r.admin.ListEndOffsets(t.Context(), r.topic)
		if err != nil {
			t.Fatal(err)
		}
		open := false
		last.Each(func(o kadm.ListedOffset) {
			s, ok := stable.Lookup(o.Topic, o.Partition)
			ends[o.Partition] = s.Offset
			open = open || !ok || o.Err != nil || s.Err != nil || s.Offset != o.Offset
		})
		return !open
	})
	return ends
}

// read returns all records below the ends. A record with a header "expect" must
// become a dead letter.
func (r *truth) read(t *testing.T, ends map[int32]int64) map[int32][]record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for !r.has(ends) {
		fetches := r.client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read the topic: %v", err)
		}
		fetches.EachRecord(func(k *kgo.Record) {
			r.next[k.Partition] = k.Offset + 1
			if k.Attrs.IsControl() {
				return
			}
			rec := record{offset: k.Offset, poison: len(k.Headers) > 0 && k.Headers[0].Key == "expect"}
			if err := json.Unmarshal(k.Value, &rec.ledger); err != nil && !rec.poison {
				t.Fatalf("a record that should be good: %v: %s", err, k.Value)
			}
			r.recs[k.Partition] = append(r.recs[k.Partition], rec)
		})
	}
	return r.recs
}

func (r *truth) has(ends map[int32]int64) bool {
	for p, end := range ends {
		if r.next[p] < end {
			return false
		}
	}
	return true
}
