package rebalance

import (
	"context"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/stream"
)

// A committer stops a claim while its partition is revoked and assigned anew. The
// pause came behind the new assignment's resume: the partition was held, and stood
// still without a word.
func TestAPauseBelongsToItsClaim(t *testing.T) {
	t.Parallel()
	client, err := kgo.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	n := Name{"t", 0}
	parts := map[string][]int32{n.Topic: {n.Number}}
	for name, end := range map[string]func(g *Group, owner stream.UUID){
		"stopped": func(g *Group, owner stream.UUID) { g.Stop(stream.Claim{Owner: owner}, Cause{Code: "setup"}) },
		"fenced":  func(g *Group, owner stream.UUID) { g.Fenced(context.Background(), owner, false) },
	} {
		for range 100_000 {
			g := New(Config{}, Board{Drop: func(stream.UUID) {}, HandOver: func(stream.UUID) {}, Tell: func(Event) {}})
			g.client = client
			h := &Held{Name: n, State: Running, Claim: stream.Claim{Owner: newOwner()}}
			owner := h.Claim.Owner
			g.held[n] = h
			var both sync.WaitGroup
			both.Go(func() { end(g, owner) })
			both.Go(func() {
				g.dropped(context.Background(), client, parts)
				g.assigned(context.Background(), client, parts)
			})
			both.Wait()
			if paused := client.PauseFetchPartitions(nil); len(paused) > 0 {
				t.Fatalf("%s: the new assignment is paused: %v", name, paused)
			}
		}
	}
}
