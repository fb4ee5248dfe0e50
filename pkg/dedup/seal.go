package dedup

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
)

// Seal makes a segment of the view's unsealed runs, up to its own head and no
// further, and returns its number of keys. 0 and nil: there was nothing to seal, or
// only runs without keys. Commits go on meanwhile.
//
// After ErrDropView somebody else has changed the log: catch the view up before its
// next batch, which says whether to load it again. After any other error, ErrBusy
// among them, call Seal again later: nothing has left the exact set.
func (s *Store) Seal(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) (int64, error) {
	done, err := s.turn(ctx, conn, set, v)
	if err != nil {
		return 0, err
	}
	defer done()
	g := v.freeze()
	if g == nil {
		return 0, nil
	}
	p := &swap{gen: g}
	keys := g.keys.sorted() // nobody adds to it any more
	if len(keys) > 0 {
		if p.segment, err = s.write(ctx, conn, set, v, keys, g.head); err != nil {
			return 0, err
		}
		v.cover(keys)
	}
	return int64(len(keys)), s.swap(ctx, conn, set, v, p)
}

// write builds the segment of a generation.
func (s *Store) write(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, keys []slot, head int64) (*Segment, error) {
	b, err := s.register(ctx, conn, set, v, &Segment{First: v.unsealed(), Last: head}, int64(len(keys)))
	if err != nil {
		return nil, err
	}
	for _, k := range keys {
		if err = b.add(ctx, k); err != nil {
			break
		}
	}
	if err == nil {
		err = b.end(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, s.discard(ctx, conn, set, b.seg))
	}
	return b.seg, nil
}

// unsealed is the number of the first run that is in no segment.
func (v *View) unsealed() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.sealed + 1
}

// sorted returns the keys in order. The slots are nearly so already.
func (s *set) sorted() []slot {
	keys := make([]slot, 0, s.n)
	s.each(func(k slot) { keys = append(keys, k) })
	slices.SortFunc(keys, slot.compare)
	return keys
}
