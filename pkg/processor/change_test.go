package processor

import (
	"testing"

	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Keys are kept only where it is proven that they mean the same, and where every copy
// of one will look into the log that it lies in.
func TestKeeps(t *testing.T) {
	t.Parallel()
	order := rule{Scope: "partition", Key: []string{"order_id"}, KeyMissing: "dead_letter"}
	strict, customer := order, order
	strict.KeyMissing, customer.Key = "coordinates", []string{"customer"}
	row := func(r rule, scope stream.Scope) offsets.Topic {
		return offsets.Topic{Scope: scope, Partitions: 2, Generation: r.generation(scope, 2)}
	}
	for _, c := range []struct {
		what       string
		row        offsets.Topic
		made, next rule
		scope      stream.Scope
		count      int32
		want       bool
	}{
		{"widened", row(order, stream.ScopePartition), order, order, stream.ScopeTopic, 2, true},
		{"widened and grown", row(order, stream.ScopePartition), order, order, stream.ScopeTopic, 5, true},
		{"key_missing alone", row(order, stream.ScopePartition), order, strict, stream.ScopePartition, 2, true},
		{"key_missing of a topic", row(order, stream.ScopeTopic), order, strict, stream.ScopeTopic, 2, true},
		{"grown: keys have moved", row(order, stream.ScopePartition), order, order, stream.ScopePartition, 4, false},
		{"narrowed: nobody knows on which partition a key was", row(order, stream.ScopeTopic), order, order, stream.ScopePartition, 2, false},
		{"another key", row(order, stream.ScopePartition), order, customer, stream.ScopeTopic, 2, false},
		{"the row is of another rule than the settings say", row(customer, stream.ScopePartition), order, order, stream.ScopeTopic, 2, false},
		{"the settings cannot be read", row(order, stream.ScopePartition), rule{}, order, stream.ScopeTopic, 2, false},
	} {
		if got := keeps(c.row, c.made, c.next, c.scope, c.count); got != c.want {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// A member works with rows of its own generation, and with those that a member of the
// same configuration has widened; never with what somebody else decided.
func TestAccepts(t *testing.T) {
	t.Parallel()
	c := Config{Key: []string{"order_id"}, KeyMissing: KeyDeadLetter, Scope: stream.ScopePartition, OnGrowth: GrowthWiden}
	other := c
	other.Key = []string{"customer"}
	row := func(c Config, scope stream.Scope) offsets.Topic {
		return offsets.Topic{Scope: scope, Partitions: 4, Generation: c.generation(scope, 4)}
	}
	stops, whole := c, c
	stops.OnGrowth, whole.Scope = GrowthStop, stream.ScopeTopic
	for _, x := range []struct {
		what string
		cfg  Config
		row  offsets.Topic
		want bool
	}{
		{"its own", c, row(c, stream.ScopePartition), true},
		{"widened", c, row(c, stream.ScopeTopic), true},
		{"widened, and it is to stop", stops, row(c, stream.ScopeTopic), false},
		{"widened under another key", c, row(other, stream.ScopeTopic), false},
		{"another key", c, row(other, stream.ScopePartition), false},
		{"narrower than configured", whole, row(c, stream.ScopePartition), false},
		{"scope topic", whole, row(c, stream.ScopeTopic), true},
	} {
		if got := x.cfg.accepts(x.row); got != x.want {
			t.Errorf("%s: %v", x.what, got)
		}
	}
}
