package rebalance_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/rebalance"
)

// The coordinator answers for one partition that its offset may not be read. The
// client leaves it out of the assignment for good and says so once, on a poll: nobody
// held the partition yet, and it stood still without a word.
func TestAnAssignedPartitionWithoutAnOffsetStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 5)
	w.fake.ControlKey(kmsg.OffsetFetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		req, ok := kreq.(*kmsg.OffsetFetchRequest)
		if !ok {
			t.Errorf("%T", kreq)
			return nil, nil, false
		}
		resp, ok := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		if !ok {
			t.Errorf("%T", req.ResponseKind())
			return nil, nil, false
		}
		for _, g := range req.Groups {
			answer := kmsg.NewOffsetFetchResponseGroup()
			answer.Group = g.Group
			for _, asked := range g.Topics {
				of := kmsg.NewOffsetFetchResponseGroupTopic()
				of.Topic, of.TopicID = asked.Topic, asked.TopicID
				for _, n := range asked.Partitions {
					p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					p.Partition, p.Offset = n, -1
					if n == 1 {
						p.ErrorCode = kerr.TopicAuthorizationFailed.Code
					}
					of.Partitions = append(of.Partitions, p)
				}
				answer.Topics = append(answer.Topics, of)
			}
			resp.Groups = append(resp.Groups, answer)
		}
		return resp, nil, true
	})
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.stopped(1, "fetch")
	if h := m.held(1); h.State != rebalance.Stopped {
		t.Errorf("%+v", h)
	}
}
