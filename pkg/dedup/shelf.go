package dedup

import (
	"bytes"
	"cmp"
	"context"
	"slices"
	"strconv"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// A shelf is a small table for the blocks of segments that die together: those that
// are going to be merged into one. When they are dead nothing else lives there, and
// vacuum gives its room back to the disk. In the table of the segments that stay
// they would leave holes of the size of the largest merge, and of all merges since
// the last vacuum.
//
// The id of a segment says where its blocks lie, to the server too. Where there is
// no shelf to have they lie with those that stay, which costs room and nothing else.
const (
	shelves   = 8
	shelfMark = "blo"    // an id on a shelf begins with this and the shelf's number
	shelfRoom = 64 << 20 // bytes a shelf may still have, of segments that are gone, for new ones
)

// shelfOf returns the shelf of a segment's blocks, false if they lie on none.
func shelfOf(id stream.UUID) (byte, bool) {
	return id[3], string(id[:3]) == shelfMark && id[3] < shelves
}

// idOn draws a segment's id on a shelf.
func idOn(shelf byte) stream.UUID {
	id := stream.NewUUID()
	copy(id[:], shelfMark)
	id[3] = shelf
	return id
}

// segmentID draws the id of a segment that is to be written: on the shelf of those it
// will be merged with, or on one that nothing lives on. Two that choose at the same
// moment may share one.
func (s *Store) segmentID(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, tier int, keys int64, live []*Segment) (stream.UUID, error) {
	if 2*keys > s.sizes.segment {
		return stream.NewUUID(), nil // it will hardly be merged again
	}
	if mates := mates(tier, keys, live, s.sizes); len(mates) > 0 {
		if shelf, ok := shelfOf(mates[len(mates)-1].ID); ok {
			return idOn(shelf), nil
		}
		return stream.NewUUID(), nil
	}
	names, from, to := make([]string, shelves), make([]stream.UUID, shelves), make([]stream.UUID, shelves)
	for n := range byte(shelves) {
		names[n] = s.schema + ".blocks_shelf_" + strconv.Itoa(int(n))
		copy(from[n][:], append([]byte(shelfMark), n))
		copy(to[n][:], append([]byte(shelfMark), n+1))
	}
	id := stream.NewUUID()
	return id, pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`SELECT u.n - 1 FROM unnest($1, $2, $3) WITH ORDINALITY AS u (name, low, high, n)
			CROSS JOIN LATERAL pg_relation_size(to_regclass(u.name)) AS bytes
			WHERE bytes < $4 AND NOT EXISTS (SELECT FROM @schema@.segments s WHERE s.id >= u.low AND s.id < u.high)
			ORDER BY bytes LIMIT 1`),
		Params: []pgtx.Param{pgtx.Texts(names), pgtx.UUIDs(from), pgtx.UUIDs(to), pgtx.Int8(shelfRoom)},
		Row: func(r pgtx.Row) error {
			var n int64
			err := r.Scan(&n)
			id = idOn(byte(n))
			return err
		},
	})
}

// mates returns the live segments that a new one will be merged with, so far.
func mates(tier int, keys int64, live []*Segment, z sizes) []*Segment {
	same := slices.DeleteFunc(slices.Clone(live), func(seg *Segment) bool { return seg.Tier != tier })
	if len(same) == 0 {
		return nil
	}
	packs := pack(same, z)
	last := packs[len(packs)-1]
	if full(last, keys, z) {
		return nil
	}
	return last
}

// pack divides segments of one tier into those that are merged with each other:
// neighbours in the order of their runs, at most z.merge of them, together at most
// z.segment keys. Only the last pack may still grow. It sorts the list.
func pack(list []*Segment, z sizes) [][]*Segment {
	slices.SortFunc(list, func(a, b *Segment) int {
		return cmp.Or(cmp.Compare(a.First, b.First), bytes.Compare(a.ID[:], b.ID[:]))
	})
	var packs [][]*Segment
	from := 0
	for i := 1; i <= len(list); i++ {
		if i == len(list) || full(list[from:i], list[i].Keys, z) {
			packs = append(packs, list[from:i])
			from = i
		}
	}
	return packs
}

// full says whether a pack has no room for a segment of so many keys.
func full(pack []*Segment, keys int64, z sizes) bool {
	for _, seg := range pack {
		keys += seg.Keys
	}
	return len(pack) >= z.merge || keys > z.segment
}
