package processor

import (
	"sync"
	"time"

	"effectonce/pkg/rebalance"
)

// tail is where a partition ends, as Kafka said last. Lag is counted up to stable:
// what lies behind it cannot be read yet, however fast one reads.
type tail struct {
	end    int64     // behind the last record
	stable int64     // behind the last record that may be read: the last stable offset; end, when uncommitted records are read
	since  time.Time // since when stable was seen standing still with records behind it; zero: there are none
	writer string    // whose open transaction begins at stable, once the partition is blocked; empty if Kafka does not say
	told   bool      // people were told that the partition is blocked
}

// follow returns the tail after another answer of Kafka.
func (t tail) follow(end, stable int64, now time.Time) tail {
	switch {
	case end <= stable:
		return tail{end: end, stable: stable, told: t.told}
	case t.since.IsZero() || t.stable != stable:
		return tail{end: end, stable: stable, since: now, told: t.told}
	}
	t.end = end
	return t
}

// lag is the number of offsets that may be read and were not yet, from position on.
func (t tail) lag(position int64) int64 { return max(t.stable-position, 0) }

// blocked reports whether everything that may be read was read, and what lies behind
// has waited for the end of a transaction for as long as limit. That is not slowness.
func (t tail) blocked(position int64, limit time.Duration, now time.Time) bool {
	return !t.since.IsZero() && position >= t.stable && now.Sub(t.since) >= limit
}

// tails are the tails of the pipeline's partitions, of those it does not hold too.
type tails struct {
	mu     sync.Mutex // guards what follows
	byName map[rebalance.Name]tail
}

func newTails() *tails { return &tails{byName: map[rebalance.Name]tail{}} }

// of returns a partition's tail; false before Kafka was asked.
func (t *tails) of(n rebalance.Name) (tail, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.byName[n]
	return found, ok
}

func (t *tails) set(n rebalance.Name, to tail) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.byName[n] = to
}
