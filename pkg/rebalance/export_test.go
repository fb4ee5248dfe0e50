package rebalance

import (
	"context"
	"slices"
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

// Due reports whether the next attempt of a waiting partition is due.
func (g *Group) Due(n Name) bool {
	due, _ := g.due(time.Now())
	return slices.ContainsFunc(due, func(h *Held) bool { return h.Name == n })
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

// Stamped makes commits under ctx carry the metadata of the tests' pipeline.
func Stamped(ctx context.Context) context.Context { return stamped(ctx, "p") }
