package rebalance

import (
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Session is what is known of this process's membership itself.
type Session struct {
	Protocol string    // the one in force: cooperative-sticky, range, consumer, or classic for what the client fell back to; empty before the first
	Beat     time.Time // when the last heartbeat left that was answered; before the first, when the client was made
	Err      error     // why the member is outside the group; nil inside
	Since    time.Time // when it left or came in
}

// ErrInstance says that another process took this member's place: give each an id of
// its own.
var ErrInstance = errors.New("another process has joined the group with the same kafka.instance_id, each needs one of its own")

// Session returns what is known now.
func (g *Group) Session() Session {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.session
}

// SessionFailed notes an error that a poll names no partition for. The client joins
// again by itself, but not under an instance id that is another process's now: that
// is ErrInstance, and the member ends.
func (g *Group) SessionFailed(err error) error {
	var failed *kgo.ErrGroupSession
	if !errors.As(err, &failed) {
		return nil
	}
	g.mu.Lock()
	if g.session.Err == nil {
		g.session.Since = time.Now()
	}
	g.session.Err = failed.Err
	g.mu.Unlock()
	g.board.Tell(Event{Kind: "session_failed", Err: failed.Err})
	if errors.Is(err, kerr.FencedInstanceID) {
		return fmt.Errorf("%w: %w", ErrInstance, failed.Err)
	}
	return nil
}

// joined notes that an assignment came, even if an empty one: the member is in the
// group.
func (g *Group) joined() {
	g.mu.Lock()
	was := g.session
	g.session.Protocol = g.chosen
	if was.Err != nil || was.Since.IsZero() {
		g.session.Err, g.session.Since = nil, time.Now()
	}
	runs := g.session.Protocol
	g.mu.Unlock()
	if was.Protocol != runs || was.Err != nil {
		g.board.Tell(Event{Kind: "joined", Protocol: runs})
	}
}

func (g *Group) choose(protocol string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.chosen = protocol
}

// Teller is the balancer, and tells the group when the members have agreed on it.
func (g *Group) Teller(b kgo.GroupBalancer) kgo.GroupBalancer { return teller{b, g} }

type teller struct {
	kgo.GroupBalancer

	g *Group
}

// ParseSyncAssignment is asked of the balancer that was agreed on only.
func (t teller) ParseSyncAssignment(assignment []byte) (map[string][]int32, error) {
	t.g.choose(t.ProtocolName())
	return t.GroupBalancer.ParseSyncAssignment(assignment)
}

// pulse hears the answers of the group's coordinator. It is a hook of the client.
type pulse struct{ g *Group }

// OnBrokerE2E implements kgo.HookBrokerE2E. An answer may be a refusal: then the
// client is about to say so.
func (p pulse) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e2e kgo.BrokerE2E) {
	if kmsg.Key(key) == kmsg.JoinGroup {
		p.g.setJoining(false)
	}
	if e2e.Err() != nil {
		return
	}
	switch kmsg.Key(key) {
	case kmsg.ConsumerGroupHeartbeat:
		p.g.choose("consumer")
	case kmsg.SyncGroup: // a balancer that tells is asked behind it, and says which
		p.g.choose("classic")
	case kmsg.Heartbeat:
	default:
		return
	}
	p.g.beat(time.Now().Add(-e2e.DurationE2E()))
}

func (g *Group) beat(sent time.Time) {
	g.mu.Lock()
	g.session.Beat = sent
	g.mu.Unlock()
	g.poke()
}
