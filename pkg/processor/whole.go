package processor

import (
	"context"
	"math"
	"time"

	"effectonce/pkg/dedup"
)

// wholeIdle is how long a view keeps segments whole that nothing repeats any more,
// when another one asks for room.
const wholeIdle = 10 * time.Second

// room is the memory that a view's whole segments may take together: what all
// filters, the exact sets once they are full, and the whole segments of other views
// leave. Without a bound there is always room.
func (l *list) room(v *dedup.View) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.memory == 0 {
		return math.MaxInt64
	}
	free := 2*l.memory - l.sealAt()*keyBytes*int64(len(l.scopes)+len(l.kept))
	for _, k := range l.kept {
		free -= k.view.Stats().Filters
	}
	for _, s := range l.scopes {
		switch {
		case s.loading:
		case s.view == v:
			free -= v.Stats().Filters
		default:
			s.view.Forget(time.Now().Add(-wholeIdle))
			other := s.view.Stats()
			free -= other.Filters + other.Whole
		}
	}
	return free
}

// whole reads segments whole that a replay walks through.
func (k keeper) whole(ctx context.Context) error {
	return k.p.log.ReadWhole(ctx, k.conn.Conn(), k.p.settings, k.v, k.p.list.room(k.v))
}
