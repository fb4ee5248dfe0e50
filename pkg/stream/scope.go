package stream

// Scope is where a business key is unique. There is one dedup log a scope.
type Scope string

// The scopes.
const (
	ScopePartition Scope = "partition" // exact while a key always comes on one partition
	ScopeTopic     Scope = "topic"     // exact for any producer
)
