package kafkatest

import (
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// RefuseOffset is a control of a fake broker's OffsetFetch: it answers a member of the
// group that nothing is committed, and for one partition number with an error. A
// request that no member makes is left alone.
func RefuseOffset(number int32, refusal *kerr.Error) func(kmsg.Request) (kmsg.Response, error, bool) {
	return func(r kmsg.Request) (kmsg.Response, error, bool) {
		q, ok := r.(*kmsg.OffsetFetchRequest)
		if !ok || len(q.Groups) != 1 || q.Groups[0].MemberID == nil {
			return nil, nil, false
		}
		resp, _ := q.ResponseKind().(*kmsg.OffsetFetchResponse)
		group := kmsg.NewOffsetFetchResponseGroup()
		group.Group = q.Groups[0].Group
		for _, asked := range q.Groups[0].Topics {
			topic := kmsg.NewOffsetFetchResponseGroupTopic()
			topic.Topic, topic.TopicID = asked.Topic, asked.TopicID
			for _, n := range asked.Partitions {
				p := kmsg.NewOffsetFetchResponseGroupTopicPartition()
				p.Partition, p.Offset = n, -1
				if n == number {
					p.ErrorCode = refusal.Code
				}
				topic.Partitions = append(topic.Partitions, p)
			}
			group.Topics = append(group.Topics, topic)
		}
		resp.Groups = append(resp.Groups, group)
		return resp, nil, true
	}
}
