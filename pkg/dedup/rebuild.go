package dedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Rebuild makes the gate, if the view has none, or a full or faded one, and filters for the
// segments that have none. It begins with the gate that the view inherited or that a
// cache has (Cached), and reads the segments that are left: those without a filter,
// and those with keys that this gate does not hold. It goes through these at once in
// the order of keys: as long as there is no gate, look-ups trust the new one as far
// as it has come. An old gate serves until the new one is ready. progress, which may
// be nil, is told keys read and keys to read in all.
//
// ErrDropView is Seal's. ErrDamaged says that a segment lacks keys: every attempt
// will find that again, so stop, and have people look. After any error, and when ctx
// is cancelled because the partition went away, nothing is left of the attempt but
// filters of segments that the cache had.
//
// A view may be loaded again meanwhile, because somebody else has sealed: the rebuild
// goes on, as long as the segments it reads are live, and what it made is the new
// view's.
func (s *Store) Rebuild(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, progress func(done, total int64)) error {
	done, err := s.turn(ctx, conn, set, v)
	if err != nil {
		return err
	}
	defer done()
	r := v.rebuild()
	defer v.abandon(r)
	if !r.needed() {
		return nil
	}
	if err := s.recall(ctx, conn, set, v, r); err != nil {
		return err
	}
	v.begin(r)
	read := make(chan chunk, chunksAhead)
	filled := make(chan error, 1)
	go func() { filled <- v.fill(r, read, progress) }()
	err = s.walk(ctx, conn, set, v, r, read)
	close(read)
	err = errors.Join(err, <-filled)
	if err == nil && r.wrong != nil {
		err = s.recount(ctx, conn, set, v, r.wrong)
	}
	return err
}

// walk reads all slices and hands them on.
func (s *Store) walk(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, r *rebuilding, read chan<- chunk) error {
	if err := s.count(ctx, conn, set, r); err != nil || r.wrong != nil {
		return err
	}
	steps := uint64(r.total/s.sizes.slice + 1)
	for i := range steps {
		from, to := place(i, steps), place(i+1, steps)
		if err := s.slice(ctx, conn, set, v, r, from, to, i+1 == steps, read); err != nil {
			return err
		}
		read <- chunk{reached: to, last: i+1 == steps}
	}
	return nil
}

// chunk is some blocks that were read; or the word that a whole slice was, and
// under the right manifest.
type chunk struct {
	bytes   []byte
	blocks  []piece
	reached uint64
	last    bool
}

// piece is one block of a chunk: its segment's index, and its length.
type piece struct{ segment, size int }

const (
	chunkBlocks = 64 // 256 kB
	chunksAhead = 8
)

// fill adds what was read to the filters, while more is read.
func (v *View) fill(r *rebuilding, read <-chan chunk, progress func(done, total int64)) error {
	var err error
	for c := range read {
		switch {
		case len(c.blocks) > 0:
			for _, p := range c.blocks {
				v.fillBlock(r, p.segment, c.bytes[:p.size])
				c.bytes = c.bytes[p.size:]
			}
		case c.last:
			err = v.finish(r)
		default:
			v.reached(r, c.reached)
		}
		if progress != nil && len(c.blocks) == 0 {
			progress(r.done, r.total)
		}
	}
	return err
}

// place is the first word of the keys at i of n.
func place(i, n uint64) uint64 {
	if i == n {
		return ^uint64(0)
	}
	return ^uint64(0) / n * i
}

// rebuilding is a gate on its way.
type rebuilding struct {
	segments    []*Segment
	good        bool                 // the view's gate is: only filters of segments are missing
	gate        *Filter              // nil when it is
	covered     map[stream.UUID]bool // segments whose keys it holds from the beginning
	recalled    bool                 // it is from the cache
	scan        []*Segment           // those to read
	filters     []*Filter            // of these; nil where there is one already
	read        []int64              // keys of each
	done, total int64
	wrong       *Segment // lacks keys, or did when it was read
}

// rebuild finds what the view has to begin with.
func (v *View) rebuild() *rebuilding {
	v.mu.Lock()
	defer v.mu.Unlock()
	r := &rebuilding{segments: v.segments, good: v.gate != nil && !v.gate.full() && !v.gate.faded()}
	if v.gate != nil || v.base == nil {
		return r
	}
	covered, outside := map[stream.UUID]bool{}, int64(0)
	for _, seg := range r.segments {
		if covered[seg.ID] = !seg.outside; seg.outside {
			outside += seg.Keys
		}
	}
	if v.base.n+outside <= v.base.capacity {
		r.gate, r.covered = v.base, covered
	}
	return r
}

// needed reports whether there is anything to do.
func (r *rebuilding) needed() bool {
	return len(r.segments) > 0 && (!r.good || slices.ContainsFunc(r.segments, func(s *Segment) bool { return s.filter == nil }))
}

// begin decides what is to be read.
func (v *View) begin(r *rebuilding) {
	v.mu.Lock()
	defer v.mu.Unlock()
	live := int64(0)
	for _, seg := range r.segments {
		live += seg.Keys
		var f *Filter
		switch {
		case seg.filter == nil:
			f = newFilter(seg.Keys, segmentShape)
		case r.good, r.covered[seg.ID]:
			continue
		}
		r.scan, r.filters = append(r.scan, seg), append(r.filters, f)
		r.total += seg.Keys
	}
	r.read = make([]int64, len(r.scan))
	if r.gate == nil && !r.good {
		r.gate = v.newGate(live)
	}
	v.building, v.ready = r.gate, 0
}

// slice reads the blocks that begin in [from, to). All keys below `to` lie in these
// or in blocks of the slices before. The statement says how many of the segments are
// live in its snapshot: one that is not may have lost its blocks, and the others have
// all of theirs, whatever the manifest is by now. Each segment's blocks come in order,
// as its builder wrote them: its filter is then, bit by bit and in its count, the one
// whose digest is stored.
func (s *Store) slice(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, r *rebuilding, from, to uint64, last bool, read chan<- chunk) error {
	ids := make([]stream.UUID, len(r.scan))
	for i, seg := range r.scan {
		ids[i] = seg.ID
	}
	end := slot{hi: to}.append(nil)
	if last {
		end = bytes.Repeat([]byte{0xff}, 17) // greater than every key
	}
	var live int64
	c := newChunk()
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT l.live, b.n, b.fingerprints
			FROM (SELECT count(*) AS live FROM @schema@.segments WHERE id = ANY ($2) AND log = $1 AND state = 'live') l
			LEFT JOIN LATERAL (SELECT u.n, b.fingerprints FROM unnest($2) WITH ORDINALITY AS u (id, n)
				CROSS JOIN LATERAL (SELECT b.fingerprints FROM @schema@.blocks b
					WHERE b.segment = u.id AND b.first >= $3 AND b.first < $4 ORDER BY b.first) b) b ON true`),
		Params: []pgtx.Param{pgtx.Int8(v.Log), pgtx.UUIDs(ids), pgtx.Bytea(slot{hi: from}.append(nil)), pgtx.Bytea(end)},
		Row: func(row pgtx.Row) error {
			var n *int64
			var b pgtype.DriverBytes // valid until the next row
			if err := row.Scan(&live, &n, &b); err != nil || n == nil {
				return err
			}
			c.bytes, c.blocks = append(c.bytes, b...), append(c.blocks, piece{int(*n - 1), len(b)})
			if len(c.blocks) == chunkBlocks {
				read <- c
				c = newChunk()
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	if live != int64(len(r.scan)) {
		return fmt.Errorf("%w: its segments changed", ErrDropView)
	}
	if len(c.blocks) > 0 {
		read <- c
	}
	return nil
}

func newChunk() chunk { return chunk{bytes: make([]byte, 0, chunkBlocks*16*usual.block)} }

// count requires that segments which are not read are whole, by their number of
// blocks: what the cache's gate says of their keys is of use only with them. (An
// inherited gate is of a view that counted.)
func (s *Store) count(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, r *rebuilding) error {
	var ids []stream.UUID
	blocks := map[stream.UUID]int64{}
	for _, seg := range r.segments {
		if r.recalled && !slices.Contains(r.scan, seg) {
			ids, blocks[seg.ID] = append(ids, seg.ID), seg.Blocks
		}
	}
	if len(ids) == 0 {
		return nil
	}
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT segment, count(*) FROM @schema@.blocks WHERE segment = ANY ($1) GROUP BY segment`),
		Params: []pgtx.Param{pgtx.UUIDs(ids)},
		Row: func(row pgtx.Row) error {
			var id stream.UUID
			var n int64
			err := row.Scan((*[16]byte)(&id), &n)
			blocks[id] -= n
			return err
		},
	})
	if err != nil {
		return err
	}
	for _, seg := range r.segments {
		if blocks[seg.ID] != 0 {
			r.wrong = seg
		}
	}
	return nil
}

// fillBlock adds a block to the filters on their way. Keys that a failed slice added
// do no harm. A gate that was taken out of the view is somebody else's.
func (v *View) fillBlock(r *rebuilding, i int, block []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	gate := r.gate
	if v.building != gate {
		gate = nil
	}
	for b := block; len(b) >= 16; b = b[16:] {
		k := slotAt(b)
		if gate != nil {
			gate.add(k)
		}
		if r.filters[i] != nil {
			r.filters[i].add(k)
		}
	}
	n := int64(len(block) / 16)
	r.read[i] += n
	r.done += n
}

func (v *View) reached(r *rebuilding, to uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.building == r.gate {
		v.ready = to
	}
}

// finish makes the filters the view's, if they have every key of the segments.
func (v *View) finish(r *rebuilding) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.building != r.gate {
		return fmt.Errorf("%w: another view has its gate", ErrDropView)
	}
	for i, seg := range r.scan {
		if r.read[i] != seg.Keys {
			r.wrong = seg
			return nil
		}
	}
	for i, seg := range r.scan {
		if r.filters[i] != nil {
			seg.filter = r.filters[i]
		}
	}
	if v.heir != nil {
		v.building, v.ready = nil, 0
		v.bequeath(r)
		return nil
	}
	if r.good {
		return nil
	}
	v.gate, v.base = r.gate, nil
	for _, seg := range r.segments {
		seg.outside = false
	}
	return nil
}

// abandon ends the attempt, whether it came to its end or not. A base stays, for the
// next one.
func (v *View) abandon(r *rebuilding) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.building == r.gate {
		v.building, v.ready = nil, 0
	}
}
