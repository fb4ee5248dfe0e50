package rebalance

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Hurry makes the next attempt of every waiting partition due now.
func (g *Group) Hurry() {
	g.mu.Lock()
	for _, h := range g.held {
		h.due = time.Now()
	}
	g.mu.Unlock()
	g.poke()
}

// The callbacks, for tests that play the client.
func (g *Group) Adjust(ctx context.Context, m map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	return g.adjust(ctx, m)
}

func (g *Group) Dropped(m map[string][]int32) { g.dropped(context.Background(), nil, m) }

// Retakes allows this many takeovers of a fenced member.
const Retakes = maxRetakes

// MayStart judges a group's offsets.
var MayStart = mayStart
