package rebalance

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Leave brings the mirror up to what is marked, once what was in flight has landed
// and before the client is closed: the client leaves it to whoever sets a callback
// for revoked partitions. Its error costs a lag tool a few seconds of truth, and so
// does leaving while the member joins, when nothing can be committed.
func (g *Group) Leave(ctx context.Context) error {
	cl := g.kafka()
	if cl == nil || g.joins() {
		return nil
	}
	if err := cl.CommitMarkedOffsets(stamped(ctx, g.cfg.Pipeline)); err != nil {
		return fmt.Errorf("mirror: %w", err)
	}
	return nil
}

// Close leaves the group and closes the client. Asked to leave while it joins, the
// client waits for its answer, which comes once every other member has joined too or
// was given up, and is given partitions only to leave again: they stand for as long,
// and for another round. A member that the group does not know any more is answered
// at once. A static one is no use to refuse: it keeps its place. When ctx ends, as it
// must where Kafka does not answer, the client ends without having left.
func (g *Group) Close(ctx context.Context, cl *kgo.Client) {
	defer g.abort()
	defer context.AfterFunc(ctx, g.abort)()
	left := make(chan struct{})
	go func() {
		defer close(left)
		cl.CloseAllowingRebalance()
	}()
	again := time.NewTicker(pace)
	defer again.Stop()
	for {
		if g.joins() {
			g.withdraw(ctx, cl)
		}
		select {
		case <-left:
			return
		case <-again.C:
		}
	}
}

// joins reports whether the group has yet to answer that this member joined.
func (g *Group) joins() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.joining && !g.cfg.Static
}

// withdraw has the group forget the member. If that fails, the client waits.
func (g *Group) withdraw(ctx context.Context, cl *kgo.Client) {
	id, _ := cl.GroupMetadata()
	if id == "" {
		return // it has yet to be given one
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = g.cfg.Group, id
	member := kmsg.NewLeaveGroupRequestMember()
	member.MemberID = id
	req.Members = append(req.Members, member)
	_, _ = req.RequestWith(ctx, cl)
}

// OnBrokerWrite implements kgo.HookBrokerWrite.
func (p pulse) OnBrokerWrite(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	if kmsg.Key(key) == kmsg.JoinGroup && err == nil {
		p.g.setJoining(true)
	}
}

func (g *Group) setJoining(joins bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.joining = joins
}
