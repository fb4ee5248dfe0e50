package processor

import (
	"math"
	"testing"

	"effectonce/pkg/dedup"
)

// What may be held whole is what dedup.memory leaves beside exact sets that are full:
// nothing when they take it all, everything without a bound.
func TestRoom(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ half, want int64 }{
		{0, math.MaxInt64},
		{2, 4 - leastSeal*keyBytes},
		{100 << 20, 200<<20 - mostSeal*keyBytes},
	} {
		l := newList(10, 1<<20, 1<<30)
		q := running(l, 1)
		l.memory = c.half
		if got := l.room(q.scope.view); got != c.want {
			t.Errorf("half of the memory %d: room %d, want %d", c.half, got, c.want)
		}
		if got := l.room(&dedup.View{}); got != c.want {
			t.Errorf("half of the memory %d: room for another view %d, want %d", c.half, got, c.want)
		}
	}
}
