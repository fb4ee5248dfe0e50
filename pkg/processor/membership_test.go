package processor_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

// A broker from before KIP-848: the client falls back without a word. We have one.
func TestABrokerThatDoesNotServeTheConfiguredProtocol(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	old, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, w.topic), kfake.MaxVersions(kversion.V3_8_0()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(old.Close)
	w.broker = old.ListenAddrs()[0]
	w.cfg.Kafka = []kgo.Opt{kgo.SeedBrokers(w.broker)}
	w.cfg.Protocol = "consumer"
	w.admin(t)
	log := &lines{}
	w.cfg.Logger = w.cfg.Logger.Output(log)
	w.produce(t, "a", "b", "c")
	all := w.at(t, 3)
	w.run(t, func() bool {
		return all() && strings.Contains(w.get("/metrics"), `effectonce_group_protocol{protocol="classic"} 1`) &&
			strings.Contains(w.get("/readyz?verbose"), "group protocol classic")
	})
	if n := strings.Count(log.String(), "the broker does not serve protocol: consumer"); n != 1 {
		t.Errorf("told %d times", n)
	}
}
