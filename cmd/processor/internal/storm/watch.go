package storm

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// watch looks at the positions while the group works: who holds which partition,
// and how far the backlog reaches. What it sees steers the run; what is counted at
// the end is read anew.
type watch struct {
	stage *stage
	limit atomic.Int64 // records that may be sent so far
	ahead atomic.Int64 // records of each partition beyond the fastest position

	mu    sync.Mutex // guards what follows
	rows  map[int32]standing
	least int64 // smallest backlog of a partition since the last full one, -1 for none
	now   int64 // the smallest now
	keep  bool  // least is kept up
}

// standing is a position's row.
type standing struct {
	next  int64
	pid   int   // of the process that took it over last, 0 for nobody
	began int64 // position when that was first seen
}

const lookEvery = 50 * time.Millisecond

func newWatch(s *stage) *watch {
	w := &watch{stage: s, least: -1}
	w.ahead.Store(s.ahead)
	w.limit.Store(int64(s.partitions) * s.ahead)
	return w
}

// run looks until the context ends.
func (w *watch) run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for turn := 0; ; turn++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := w.look(ctx, turn%4 == 0); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

var holderPid = regexp.MustCompile(`pid (\d+)$`)

func (w *watch) look(ctx context.Context, backlog bool) error {
	rows, err := w.stage.db.Query(ctx, "SELECT partition, next_offset, coalesce(holder, '') FROM "+w.stage.relation(w.stage.name, "positions"))
	if err != nil {
		return fmt.Errorf("positions: %w", err)
	}
	now, fastest := map[int32]standing{}, int64(0)
	var part int32
	var holder string
	var at standing
	if _, err = pgx.ForEachRow(rows, []any{&part, &at.next, &holder}, func() error {
		at.pid, at.began = 0, at.next
		if m := holderPid.FindStringSubmatch(holder); m != nil {
			at.pid, _ = strconv.Atoi(m[1]) // digits
		}
		if old := w.rows[part]; old.pid == at.pid { // the rows have one writer, and this is it
			at.began = old.began
		}
		now[part] = at
		fastest = max(fastest, at.next)
		return nil
	}); err != nil {
		return fmt.Errorf("positions: %w", err)
	}
	w.limit.Store(int64(w.stage.partitions) * (fastest + w.ahead.Load()))
	w.mu.Lock()
	w.rows = now
	w.mu.Unlock()
	if !backlog {
		return nil
	}
	return w.measure(ctx, now)
}

// measure notes the smallest backlog.
func (w *watch) measure(ctx context.Context, now map[int32]standing) error {
	ends, err := w.stage.kafka.ListEndOffsets(ctx, w.stage.name)
	if err != nil {
		return fmt.Errorf("end offsets: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.now = math.MaxInt64
	for part, at := range now {
		end, _ := ends.Lookup(w.stage.name, part)
		w.now = min(w.now, end.Offset-at.next)
	}
	if w.keep && (w.least < 0 || w.now < w.least) {
		w.least = w.now
	}
	return nil
}

// full reports whether every partition has enough to work on.
func (w *watch) full() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.rows) == int(w.stage.partitions) && w.now >= w.stage.ahead/2 && w.now < math.MaxInt64
}

// due holds the producer back to what the backlog needs.
func (w *watch) due(ctx context.Context, made int64) bool {
	for made >= w.limit.Load() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(lookEvery / 10):
		}
	}
	return ctx.Err() == nil
}

// lower lets the backlog shrink to what no partition works off at once.
func (w *watch) lower() { w.ahead.Store(w.stage.ahead / 4) }

// note keeps up the smallest backlog from here on, or ends that.
func (w *watch) note(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keep = on
}

// leastBacklog is the smallest seen.
func (w *watch) leastBacklog() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.least
}

// heldBy are the partitions that a process took over last.
func (w *watch) heldBy(pid int) []int32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var parts []int32
	for part, at := range w.rows {
		if at.pid == pid {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return parts
}

// even reports whether these processes, and no other, hold all partitions in parts
// that differ by one at most, and have committed for each.
func (w *watch) even(pids []int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	held := map[int]int{}
	for _, at := range w.rows {
		if at.next > at.began {
			held[at.pid]++
		}
	}
	least, most, all := len(w.rows), 0, 0
	for _, pid := range pids {
		n := held[pid]
		least, most, all = min(least, n), max(most, n), all+n
	}
	return all == int(w.stage.partitions) && most-least <= 1
}

// total is the sum of the positions.
func (w *watch) total() (sum int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.rows {
		sum += at.next
	}
	return sum
}
