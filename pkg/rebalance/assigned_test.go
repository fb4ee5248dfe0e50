package rebalance_test

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/internal/kafkatest"
	"effectonce/pkg/rebalance"
)

// The coordinator answers for one partition that its offset may not be read. The
// client leaves it out of the assignment for good and says so once, on a poll: nobody
// held the partition yet, and it stood still without a word.
func TestAnAssignedPartitionWithoutAnOffsetStops(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2, 0, 5)
	refuse := kafkatest.RefuseOffset(1, kerr.TopicAuthorizationFailed)
	w.fake.ControlKey(kmsg.OffsetFetch.Int16(), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		return refuse(r)
	})
	m := w.join(w.config())
	m.reads(0, 0, 10)
	m.stopped(1, "fetch")
	if h := m.held(1); h.State != rebalance.Stopped {
		t.Errorf("%+v", h)
	}
}
