package dedup

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/internal/pgtx"
)

// Compact merges segments of one tier into one of the next, and returns how many:
// 0 and nil when there is nothing to merge. Segments for which window differs are
// never merged, so that expired ones can be dropped whole; nil is one window for
// all. Errors are those of Seal.
func (s *Store) Compact(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, window func(Segment) int64) (int, error) {
	done, err := s.turn(ctx, conn, set, v)
	if err != nil {
		return 0, err
	}
	defer done()
	if window != nil {
		if err := s.times(ctx, conn, set, v); err != nil {
			return 0, err
		}
	}
	inputs := choose(v.live(), window, s.sizes)
	if len(inputs) == 0 {
		return 0, nil
	}
	seg, err := s.merge(ctx, conn, set, v, inputs)
	if short, ok := errors.AsType[*shortError](err); ok {
		err = s.recount(ctx, conn, set, v, short.seg)
	}
	if err != nil {
		return 0, err
	}
	return len(inputs), s.swap(ctx, conn, set, v, &swap{segment: seg, dead: inputs})
}

func (v *View) live() []*Segment {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.segments
}

// choose returns the segments to merge: the oldest pack of the lowest tier that is
// complete, so that what lies on one shelf dies at once. A pack is within one window.
func choose(live []*Segment, window func(Segment) int64, z sizes) []*Segment {
	type group struct {
		tier   int
		window int64
	}
	groups := map[group][]*Segment{}
	for _, seg := range live {
		g := group{tier: seg.Tier}
		if window != nil {
			g.window = window(*seg)
		}
		groups[g] = append(groups[g], seg)
	}
	var best []*Segment
	for _, list := range groups {
		packs := pack(list, z)
		for i, p := range packs {
			complete := i+1 < len(packs) || len(p) == z.merge
			if complete && len(p) > 1 && (len(best) == 0 || older(p[0], best[0])) {
				best = p
			}
		}
	}
	return best
}

// older says whether a pack that begins with a is merged before one that begins with b.
func older(a, b *Segment) bool { return a.Tier < b.Tier || a.Tier == b.Tier && a.First < b.First }

// merge streams the inputs into a new segment of the next tier.
func (s *Store) merge(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, inputs []*Segment) (*Segment, error) {
	out := &Segment{Tier: inputs[0].Tier + 1, First: inputs[0].First, Last: inputs[0].Last}
	sources := make([]*source, len(inputs))
	expected := int64(0)
	for i, in := range inputs {
		sources[i] = &source{store: s, seg: in}
		expected += in.Keys
		out.First, out.Last = min(out.First, in.First), max(out.Last, in.Last)
	}
	b, err := s.register(ctx, conn, set, v, out, expected)
	if err != nil {
		return nil, err
	}
	if err := b.drain(ctx, sources); err != nil {
		return nil, errors.Join(err, s.discard(ctx, conn, set, out))
	}
	return out, nil
}

// drain adds the keys of all sources in order.
func (b *builder) drain(ctx context.Context, sources []*source) error {
	for _, src := range sources {
		if err := src.next(ctx, b.conn, b.set); err != nil {
			return err
		}
	}
	for {
		var least *source
		for _, src := range sources {
			if !src.done && (least == nil || src.key.less(least.key)) {
				least = src
			}
		}
		if least == nil {
			return b.end(ctx)
		}
		if err := b.add(ctx, least.key); err != nil {
			return err
		}
		if err := least.next(ctx, b.conn, b.set); err != nil {
			return err
		}
	}
}

// shortError is a segment of which not all keys came: it has gone, or is damaged.
type shortError struct {
	seg *Segment
	got int64
}

func (e *shortError) Error() string {
	return fmt.Sprintf("segment %s: %d of %d keys came", e.seg.ID, e.got, e.seg.Keys)
}

func (e *shortError) Unwrap() error { return ErrDropView }

// source reads a segment's keys in order, some blocks a statement.
type source struct {
	store *Store
	seg   *Segment
	page  []byte // keys read and not merged yet
	key   slot   // the next one
	after []byte // first key of the last block read
	read  int64  // keys merged or at hand
	done  bool
}

// next moves to the next key. All keys must have come at the end: blocks may have
// been removed by somebody else's compaction, and the manifest may be what it was
// before that again.
func (r *source) next(ctx context.Context, conn *pgx.Conn, set pgtx.Settings) error {
	if len(r.page) == 0 {
		if err := r.fill(ctx, conn, set); err != nil {
			return err
		}
		if len(r.page) == 0 {
			r.done = true
			if r.read != r.seg.Keys {
				return &shortError{r.seg, r.read}
			}
			return nil
		}
	}
	k := slotAt(r.page)
	if r.read > 0 && !r.key.less(k) {
		return fmt.Errorf("%w: segment %s is not sorted", ErrDamaged, r.seg.ID)
	}
	r.key, r.page = k, r.page[16:]
	r.read++
	return nil
}

func (r *source) fill(ctx context.Context, conn *pgx.Conn, set pgtx.Settings) error {
	return pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: r.store.sql(`SELECT fingerprints FROM @schema@.blocks WHERE segment = $1 AND first > $2 ORDER BY first
			LIMIT ` + strconv.Itoa(r.store.sizes.page)),
		Params: []pgtx.Param{pgtx.UUID(r.seg.ID), pgtx.Bytea(append([]byte{}, r.after...))},
		Row: func(row pgtx.Row) error {
			var b pgtype.DriverBytes // valid until the next row
			if err := row.Scan(&b); err != nil {
				return err
			}
			if len(b) < 16 || len(b)%16 != 0 {
				return fmt.Errorf("%w: segment %s has a block of %d bytes", ErrDamaged, r.seg.ID, len(b))
			}
			r.after = append(r.after[:0], b[:16]...)
			r.page = append(r.page, b...)
			return nil
		},
	})
}

const (
	uuidOID  = pgtype.UUIDOID
	uuidsOID = pgtype.UUIDArrayOID
	int8OID  = pgtype.Int8OID
)
