package processor

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/rebalance"
)

// While there is no room for more bytes the loop does not poll, and what does not
// poll holds back no rebalance: a request to open a claim's queue met the revoke of
// its partition. The queue of a claim that nobody held was there for ever.
func TestRequestsHoldBackRebalancesWithoutRoom(t *testing.T) {
	t.Parallel()
	p := &Processor{list: newList(10, 1<<20, 1), health: newHealth()}
	p.loop = &loop{p: p, wake: func() {}}
	p.group = rebalance.New(rebalance.Config{}, rebalance.Board{
		Open: p.list.open, Drop: p.list.drop, HandOver: p.handOver, Ask: p.loop.ask, Tell: func(rebalance.Event) {},
	})
	p.metrics = newMetrics()
	assigned, revoked := make(chan struct{}, 10), make(chan struct{}, 10)
	addr := kafkatest.Fake(t, 1, "t").ListenAddrs()[0]
	p.client = kafkatest.Client(t, addr, kgo.ConsumerGroup("g"), kgo.ConsumeTopics("t"), kgo.BlockRebalanceOnPoll(),
		kgo.Balancers(kgo.RangeBalancer()), kgo.HeartbeatInterval(100*time.Millisecond),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { assigned <- struct{}{} }),
		kgo.OnPartitionsRevoked(func(context.Context, *kgo.Client, map[string][]int32) { revoked <- struct{}{} }))

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = p.loop.run(ctx)
	}()
	<-assigned
	p.list.open(claimOf(1, 0))
	p.list.offer(nameOf(1), recordsOf(0, 1)) // the bound is one byte
	served := make(chan bool)
	request := func() {
		p.client.ForceRebalance()
		select {
		case <-revoked:
			served <- false
		case <-time.After(2 * time.Second): // many heartbeats
			served <- true
		}
	}
	p.loop.ask(func() { p.loop.ask(request) }) // in the next turn, which has no room
	if !<-served {
		t.Fatal("a partition was revoked while a request was served")
	}
	<-revoked // behind the request
	cancel()
	<-ended
}
