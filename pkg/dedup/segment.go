package dedup

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Segment is an immutable, sorted part of a log: the keys of some of its runs.
type Segment struct {
	ID             stream.UUID
	Tier           int // how often its keys were merged
	Keys, Blocks   int64
	First, Last    int64 // numbers of the runs it covers, from the first to the last
	Oldest, Newest time.Time
	Digest         []byte // of its filter's image

	filter  *Filter // nil until it is built
	outside bool    // its keys are not in the base of the gate to be
}

// sizes are what one statement or transaction carries, and what a segment is made of.
type sizes struct {
	block   int   // fingerprints a block
	copy    int   // blocks a transaction that writes a segment
	page    int   // blocks a statement that reads one of the inputs of a compaction
	slice   int64 // keys a statement of a rebuild
	merge   int   // segments of a tier that become one of the next
	segment int64 // most keys of a segment that is merged
	runs    int   // runs a statement that clears fingerprints
	clear   int   // blocks a statement that removes dead ones
	prune   int   // audit rows a statement that deletes them

	alone time.Duration // how long a segment that is being built keeps others of its log from being begun, since its last blocks
}

var usual = sizes{
	block: 250,     // two rows a page
	copy:  2000,    // 8 MB
	page:  128,     // 512 kB
	slice: 250_000, // 4 MB, and a part of the gate that stays in a core's cache
	merge: 8, segment: 8_000_000,
	runs:  64, // 10 MB
	clear: 2000, prune: 2000,
	alone: 10 * time.Second,
}

// builder writes one segment: its row in state building, then its blocks in short
// transactions, from keys that come in order. Nothing sees it before a swap.
type builder struct {
	store *Store
	conn  *pgx.Conn
	set   pgtx.Settings
	seg   *Segment
	block []byte // fingerprints of the block at hand
	buf   []byte // COPY stream of the blocks not sent yet
	rows  int    // in buf
	last  slot
}

// ErrBusy says that somebody else has just begun a segment of this log: nothing was
// done, come back later. It saves members that tend one log from doing everything
// twice; nothing rests on it.
var ErrBusy = errors.New("somebody else is building a segment of this log")

// register writes a segment's row. Its id is random: another attempt, or another
// member's, is another segment. One that is said to begin in the future is by a clock
// that was ahead, as of a server before a failover: it would stand in the way, and
// views would grow, for as long as it was.
func (s *Store) register(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, seg *Segment, expected int64) (*builder, error) {
	var err error
	if seg.ID, err = s.segmentID(ctx, conn, set, seg.Tier, expected, v.live()); err != nil {
		return nil, err
	}
	open, alone := false, false
	err = pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`WITH l AS (SELECT id FROM @schema@.logs WHERE id = $2 AND state = 'open'),
			made AS (INSERT INTO @schema@.segments (id, log, state, tier, keys, blocks, first_run, last_run)
				SELECT $1, l.id, 'building', $3, $4, 0, $5, $6 FROM l WHERE NOT EXISTS (SELECT FROM @schema@.segments
					WHERE log = $2 AND state = 'building' AND created_at BETWEEN now() - $7 * interval '1 ms' AND now() + $7 * interval '1 ms')
				RETURNING 1)
			SELECT EXISTS (SELECT FROM l), EXISTS (SELECT FROM made)`),
		Params: []pgtx.Param{
			pgtx.UUID(seg.ID), pgtx.Int8(v.Log), pgtx.Int4(int32(seg.Tier)), pgtx.Int8(expected), pgtx.Int8(seg.First), pgtx.Int8(seg.Last),
			pgtx.Int8(s.sizes.alone.Milliseconds()),
		},
		Row: func(r pgtx.Row) error { return r.Scan(&open, &alone) },
	})
	switch {
	case err != nil: // perhaps it is there all the same
		return nil, errors.Join(err, s.discard(ctx, conn, set, seg))
	case !open:
		return nil, fmt.Errorf("%w: log %d is not open", ErrDropView, v.Log)
	case !alone:
		return nil, ErrBusy
	}
	seg.filter = newFilter(expected, segmentShape)
	buf := make([]byte, 0, int(min(expected/int64(s.sizes.block)+1, int64(s.sizes.copy)))*(rowHead+16*s.sizes.block)+64)
	return &builder{
		store: s, conn: conn, set: set, seg: seg, block: make([]byte, 0, 16*s.sizes.block), buf: append(buf, copyHeader...),
	}, nil
}

// add appends a key, which must be greater than the one before. A key that comes
// twice is one.
func (b *builder) add(ctx context.Context, k slot) error {
	if b.seg.Keys > 0 && k == b.last {
		return nil
	}
	b.block, b.last = k.append(b.block), k
	b.seg.Keys++
	b.seg.filter.add(k)
	if len(b.block) < 16*b.store.sizes.block {
		return nil
	}
	return b.endBlock(ctx)
}

func (b *builder) endBlock(ctx context.Context) error {
	b.buf = appendRow(b.buf, b.seg.ID, b.block)
	b.block = b.block[:0]
	b.rows++
	b.seg.Blocks++
	if b.rows < b.store.sizes.copy {
		return nil
	}
	return b.flush(ctx)
}

// flush sends the blocks at hand in one transaction.
func (b *builder) flush(ctx context.Context) error {
	if b.rows == 0 {
		return nil
	}
	tx, err := pgtx.Begin(ctx, b.conn, b.set)
	if err != nil {
		return err
	}
	b.buf = append(b.buf, copyTrailer...)
	_, err = tx.Copy(ctx, b.store.sql(`COPY @schema@.blocks (segment, first, fingerprints) FROM STDIN BINARY`), bytes.NewReader(b.buf))
	if err != nil {
		tx.Rollback(ctx)
		return err
	}
	b.buf, b.rows = append(b.buf[:0], copyHeader...), 0
	return tx.Commit(ctx, pgtx.Statement{ // a sign of life
		Step: pgtx.StepWrite, SQL: b.store.sql(`UPDATE @schema@.segments SET created_at = now() WHERE id = $1 AND state = 'building'`),
		Params: []pgtx.Param{pgtx.UUID(b.seg.ID)},
	})
}

// end sends what is left and names the filter. The segment can be swapped in then.
func (b *builder) end(ctx context.Context) error {
	if len(b.block) > 0 {
		if err := b.endBlock(ctx); err != nil {
			return err
		}
	}
	if err := b.flush(ctx); err != nil {
		return err
	}
	image, err := b.seg.filter.MarshalBinary()
	if err != nil {
		return err
	}
	digest := Digest(image)
	b.seg.Digest = digest[:]
	return nil
}

// The binary COPY stream: the signature without flags and extension, the rows, and
// the count of columns that ends it.
const (
	copyHeader  = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	copyTrailer = "\xff\xff"
	rowHead     = 2 + 4 + 16 + 4 + 16 + 4
)

func appendRow(buf []byte, id stream.UUID, block []byte) []byte {
	buf = append(buf, 0, 3, 0, 0, 0, 16)
	buf = append(buf, id[:]...)
	buf = append(buf, 0, 0, 0, 16)
	buf = append(buf, block[:16]...)
	buf = binary.BigEndian.AppendUint32(buf, uint32(len(block)))
	return append(buf, block...)
}
