package rebalance_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/rebalance"
)

// A member that was told to stop while it joined waited until the group had given up
// one that had frozen, was given that one's partitions, and left with them: they stood
// for another round, several times in a row when members came and went.
func TestLeavesWhileItJoins(t *testing.T) {
	t.Parallel()
	broker := kafkatest.Broker(t)
	name := kafkatest.Topic(t, 1)
	others := kafkatest.Client(t, broker)
	frozen := joinAndFreeze(t, others, name)
	m := rebalance.New(rebalance.Config{Pipeline: name, Group: name}, rebalance.Board{Tell: func(rebalance.Event) {}})
	cl, err := kgo.NewClient(append(m.Options(context.WithoutCancel(t.Context())),
		kgo.SeedBrokers(broker), kgo.ConsumerGroup(name), kgo.ConsumeTopics(name), kgo.Balancers(kgo.CooperativeStickyBalancer()))...)
	if err != nil {
		t.Fatal(err)
	}
	adm := kadm.NewClient(others)
	describe := func() kadm.DescribedGroup {
		described, err := adm.DescribeGroups(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return described[name]
	}
	for began := time.Now(); describe().State != "PreparingRebalance"; {
		if time.Since(began) > limit {
			t.Fatalf("it does not join: %+v", describe())
		}
	}
	began := time.Now()
	m.Close(t.Context(), cl)
	if took := time.Since(began); took > frozenSession/2 {
		t.Errorf("leaving took %s", took)
	}
	for _, member := range describe().Members {
		if member.MemberID != frozen {
			t.Errorf("it is still in the group: %s", member.MemberID)
		}
	}
}

const frozenSession = 20 * time.Second

// joinAndFreeze makes a group of one member that never says a word again.
func joinAndFreeze(t *testing.T, cl *kgo.Client, group string) (id string) {
	t.Helper()
	for range 2 { // the first answer is the id to join with
		req := kmsg.NewPtrJoinGroupRequest()
		req.Group, req.MemberID, req.ProtocolType = group, id, "consumer"
		req.SessionTimeoutMillis, req.RebalanceTimeoutMillis = int32(frozenSession.Milliseconds()), int32(frozenSession.Milliseconds())
		protocol := kmsg.NewJoinGroupRequestProtocol()
		protocol.Name = "cooperative-sticky"
		metadata := kmsg.NewConsumerMemberMetadata()
		metadata.Topics = []string{group}
		protocol.Metadata = metadata.AppendTo(nil)
		req.Protocols = append(req.Protocols, protocol)
		resp, err := req.RequestWith(t.Context(), cl)
		if err != nil {
			t.Fatal(err)
		}
		id = resp.MemberID
	}
	return id
}
