package dedup

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// DamageError is the place where a log's rows are not what they must be.
type DamageError struct {
	Place   string // segment, block, run
	Problem string
}

func (d *DamageError) Error() string { return d.Place + ": " + d.Problem }

// Verified is what Verify has read.
type Verified struct {
	Keys, Blocks, Runs int64 // runs are those that are not sealed
	Segments           int
	Digests            int   // of these, segments whose filter's digest was compared
	Repeats            int64 // keys that came on several partitions before the topic was widened; not in Keys
}

// Verify reads a whole log as of one moment and proves that
//
//   - the runs behind sealed are contiguous, sorted and with their fingerprints, and
//     end at head_id;
//   - blocks are sorted, within and across, and counts of blocks and keys are right;
//   - no key is in the log twice, unless it was joined from several;
//   - a filter made anew from a segment has the digest that is stored;
//   - a view that is loaded and rebuilt afterwards, on a second connection, lets no
//     key of the log pass for a new one.
//
// A *DamageError says where one of these does not hold; ErrDropView that the log changed
// too often meanwhile. It takes as much memory as a view of the log, and about half
// as much again for the segments' filters.
func (s *Store) Verify(ctx context.Context, conn, second *pgx.Conn, set pgtx.Settings, pipeline int64, l Standing) (Verified, error) {
	for tries := 1; ; tries++ {
		found, err := s.verify(ctx, conn, second, set, pipeline, l)
		if errors.Is(err, ErrDropView) && tries < loadTries {
			continue
		}
		return found, err
	}
}

func (s *Store) verify(ctx context.Context, conn, second *pgx.Conn, set pgtx.Settings, pipeline int64, l Standing) (Verified, error) {
	tx, err := pgtx.Snapshot(ctx, conn, set)
	if err != nil {
		return Verified{}, err
	}
	defer tx.Rollback(ctx)
	r := &reading{store: s, tx: tx}
	if err := r.open(ctx, l.Log); err != nil {
		return r.found, err
	}
	// The view comes after the snapshot, so it has all of its keys and perhaps more.
	v, lost := s.Load(ctx, second, set, pipeline, l.Partition, nil)
	if lost == nil && v.Log != l.Log {
		lost = fmt.Errorf("%w: another log is open", ErrDropView)
	}
	if lost == nil {
		lost = s.Rebuild(ctx, second, set, v, nil)
	}
	if lost == nil {
		r.view = v
	} else if !errors.Is(lost, ErrDropView) && !errors.Is(lost, ErrDamaged) { // where it is damaged is found below
		return r.found, lost
	}
	if err := r.all(ctx); err != nil {
		return r.found, err
	}
	return r.found, lost // the rows are in order: the log changed while the view was made
}

// reading is one log in one snapshot.
type reading struct {
	store  *Store
	tx     *pgtx.Tx
	head   head
	joined bool // from the logs of partitions, which may have had keys in common
	tracks []*track
	view   *View // nil when it could not be made
	found  Verified

	digests map[stream.UUID][32]byte // of the filters whose stored digest is another; nil: that is damage
}

// open reads the log's row and the list of its segments.
func (r *reading) open(ctx context.Context, log int64) error {
	h := &r.head
	err := r.tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: r.store.sql(`SELECT id, head, head_id, manifest, sealed, partition IS NULL AND EXISTS (SELECT FROM @schema@.logs c
				WHERE c.pipeline = l.pipeline AND c.topic_id = l.topic_id AND c.state = 'closed')
			FROM @schema@.logs l WHERE id = $1 AND state = 'open'`),
		Params: []pgtx.Param{pgtx.Int8(log)},
		Row: func(row pgtx.Row) error {
			return row.Scan(&h.log, &h.head, (*[16]byte)(&h.headID), (*[16]byte)(&h.manifest), &h.sealed, &r.joined)
		},
	})
	if err != nil {
		return err
	}
	if h.log == 0 {
		return fmt.Errorf("%w: log %d", ErrNoLog, log)
	}
	err = r.tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: r.store.sql(`SELECT id, keys, blocks, last_run, filter_digest FROM @schema@.segments
			WHERE log = $1 AND state = 'live' ORDER BY first_run, id`),
		Params: []pgtx.Param{pgtx.Int8(r.head.log)},
		Row: func(row pgtx.Row) error {
			var g Segment
			err := row.Scan((*[16]byte)(&g.ID), &g.Keys, &g.Blocks, &g.Last, &g.Digest)
			r.tracks = append(r.tracks, &track{
				reading: r, seg: &g, place: "segment " + g.ID.String(), filter: newFilter(g.Keys, segmentShape),
			})
			return err
		},
	})
	r.found.Segments = len(r.tracks)
	return err
}

// all reads runs and segments side by side in the order of keys.
func (r *reading) all(ctx context.Context) error {
	for _, t := range r.tracks {
		if t.seg.Last > r.head.sealed {
			return &DamageError{t.place, fmt.Sprintf("it covers run %d, and only runs up to %d are sealed", t.seg.Last, r.head.sealed)}
		}
		if r.view != nil {
			t.known = r.view.filterOf(t.seg.ID)
		}
	}
	runs, err := r.runs(ctx)
	if err != nil {
		return err
	}
	tracks := append(slices.Clone(r.tracks), runs)
	for _, t := range tracks {
		if err := t.next(ctx); err != nil {
			return err
		}
	}
	return r.merge(ctx, tracks)
}

// merge goes through all keys in order: the same one twice has its copies side by side.
func (r *reading) merge(ctx context.Context, tracks []*track) error {
	var last *track // whose key came last
	var key slot
	var at int64 // where in it
	for {
		var least *track
		for _, t := range tracks {
			if !t.done && (least == nil || t.key.less(least.key)) {
				least = t
			}
		}
		if least == nil {
			return nil
		}
		if last != nil && least.key == key && !r.joined {
			return &DamageError{last.at(at) + " and " + least.at(least.here), fmt.Sprintf("key %s is in both", key)}
		}
		if last != nil && least.key == key {
			r.found.Repeats++
		} else {
			r.found.Keys++
		}
		last, key, at = least, least.key, least.here
		if err := least.next(ctx); err != nil {
			return err
		}
	}
}

// runs reads what is not sealed, as one track in the order of keys.
func (r *reading) runs(ctx context.Context) (*track, error) {
	t := &track{reading: r}
	next, from, last := r.head.sealed+1, r.head.sealed, stream.UUID{}
	var bad error
	for bad == nil {
		before := from
		err := r.tx.Run(ctx, pgtx.Statement{
			Step: pgtx.StepLog,
			SQL: r.store.sql(`SELECT seq, run_id, fingerprints FROM @schema@.runs WHERE log = $1 AND seq >= $2
				ORDER BY seq LIMIT $3`),
			Params: []pgtx.Param{pgtx.Int8(r.head.log), pgtx.Int8(from), pgtx.Int8(page)},
			Row: func(row pgtx.Row) error {
				var seq int64
				var run []byte
				if err := row.Scan(&seq, (*[16]byte)(&last), &run); err != nil || bad != nil {
					return err
				}
				from = seq + 1
				if seq == r.head.sealed { // it names what is sealed, if it is still there
					return nil
				}
				bad = r.run(t, seq, next, run)
				next++
				return nil
			},
		})
		if err != nil {
			return nil, err
		}
		if from == before {
			break
		}
	}
	r.found.Runs = next - 1 - r.head.sealed
	switch {
	case bad != nil:
		return nil, bad
	case next <= r.head.head:
		return nil, &DamageError{fmt.Sprintf("run %d", next), "it is missing"}
	case last != r.head.headID && last != (stream.UUID{}):
		return nil, &DamageError{fmt.Sprintf("run %d", r.head.head), fmt.Sprintf("it is %s, and the log's head is %s", last, r.head.headID)}
	}
	slices.SortFunc(t.loose, func(a, b loose) int { return a.compare(b.slot) })
	return t, nil
}

// run looks at one run and adds its keys.
func (r *reading) run(t *track, seq, want int64, run []byte) error {
	place := fmt.Sprintf("run %d", seq)
	switch {
	case seq != want:
		return &DamageError{fmt.Sprintf("run %d", want), "it is missing"}
	case seq > r.head.head:
		return &DamageError{place, fmt.Sprintf("it is beyond the log's head, which is %d", r.head.head)}
	case run == nil:
		return &DamageError{place, "it is not sealed and has no fingerprints"}
	case len(run)%16 != 0:
		return &DamageError{place, fmt.Sprintf("it has %d bytes of fingerprints", len(run))}
	}
	for i := 0; i < len(run); i += 16 {
		k := slotAt(run[i:])
		if i > 0 && !slotAt(run[i-16:]).less(k) {
			return &DamageError{place, fmt.Sprintf("key %d, %s, does not come after the one before", i/16, k)}
		}
		t.loose = append(t.loose, loose{k, seq})
	}
	return r.known(place, nil, run)
}

// known asks the view about keys it must have.
func (r *reading) known(place string, filter *Filter, keys []byte) error {
	if r.view == nil {
		return nil
	}
	v := r.view
	v.mu.Lock()
	defer v.mu.Unlock()
	for i := 0; i < len(keys); i += 16 {
		k := slotAt(keys[i:])
		switch {
		case filter != nil && !filter.has(k):
			return &DamageError{place, fmt.Sprintf("key %d, %s, does not pass its segment's filter", i/16, k)}
		case v.find(k) != absent:
		case v.manifest != r.head.manifest:
			return fmt.Errorf("%w: its segments changed", ErrDropView) // expired, perhaps
		default:
			return &DamageError{place, fmt.Sprintf("key %d, %s, does not pass the filter", i/16, k)}
		}
	}
	return nil
}

func (v *View) filterOf(segment stream.UUID) *Filter {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, seg := range v.segments {
		if seg.ID == segment {
			return seg.filter
		}
	}
	return nil
}

// String is a key for people: a fingerprint in hex.
func (s slot) String() string { return hex.EncodeToString(s.append(nil)) }

// track is one sorted part of a log: a segment, or all runs that are not sealed.
type track struct {
	reading *reading
	place   string // of the segment
	key     slot   // at hand
	here    int64  // its number in the segment, or its run's
	done    bool

	loose []loose // of runs; keys not merged yet

	seg          *Segment // nil for the runs
	filter       *Filter  // made anew, in order
	known        *Filter  // the view's
	page         []byte   // keys read and not merged yet
	last         []byte   // the last key of page, or before it
	after        []byte   // first key of the last block
	blocks, keys int64    // read
}

// loose is a key and the run it is in.
type loose struct {
	slot

	seq int64
}

// at is where a key lies, for people.
func (t *track) at(here int64) string {
	if t.seg == nil {
		return fmt.Sprintf("run %d", here)
	}
	return fmt.Sprintf("%s, key %d", t.place, here)
}

func (t *track) next(ctx context.Context) error {
	if t.seg == nil {
		if t.done = len(t.loose) == 0; !t.done {
			t.key, t.here, t.loose = t.loose[0].slot, t.loose[0].seq, t.loose[1:]
		}
		return nil
	}
	if len(t.page) == 0 {
		if err := t.fill(ctx); err != nil {
			return err
		}
		if len(t.page) == 0 {
			t.done = true
			return t.end()
		}
	}
	t.here = t.keys - int64(len(t.page)/16)
	t.key, t.page = slotAt(t.page), t.page[16:]
	return nil
}

// fill reads and checks some blocks.
func (t *track) fill(ctx context.Context) error {
	var bad error
	t.page = t.page[:0]
	err := t.reading.tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: t.reading.store.sql(`SELECT first, fingerprints FROM @schema@.blocks WHERE segment = $1 AND first > $2
			ORDER BY first LIMIT $3`),
		Params: []pgtx.Param{
			pgtx.UUID(t.seg.ID), pgtx.Bytea(append([]byte{}, t.after...)), pgtx.Int8(int64(t.reading.store.sizes.page)),
		},
		Row: func(row pgtx.Row) error {
			var first, block []byte
			if err := row.Scan(&first, &block); err != nil || bad != nil {
				return err
			}
			bad = t.block(first, block)
			t.after = first
			t.page = append(t.page, block...)
			return nil
		},
	})
	if err != nil {
		return err
	}
	return bad
}

// block looks at one block behind those read before.
func (t *track) block(first, block []byte) error {
	place := fmt.Sprintf("%s, block %d (%x)", t.place, t.blocks, first)
	switch {
	case len(block) == 0 || len(block)%16 != 0:
		return &DamageError{place, fmt.Sprintf("it has %d bytes of fingerprints", len(block))}
	case !bytes.Equal(first, block[:16]):
		return &DamageError{place, fmt.Sprintf("it begins with %x", block[:16])}
	}
	for i := 0; i < len(block); i += 16 {
		k := block[i : i+16]
		if len(t.last) > 0 && bytes.Compare(t.last, k) >= 0 {
			return &DamageError{place, fmt.Sprintf("key %d, %x, does not come after the one before, %x", i/16, k, t.last)}
		}
		t.last = k
		t.filter.add(slotAt(k))
	}
	t.blocks++
	t.keys += int64(len(block) / 16)
	t.reading.found.Blocks++
	return t.reading.known(place, t.known, block)
}

// end compares what was read with what the segment's row says.
func (t *track) end() error {
	if t.blocks != t.seg.Blocks || t.keys != t.seg.Keys {
		return &DamageError{t.place, fmt.Sprintf("it has %d blocks and %d keys, and its row says %d and %d",
			t.blocks, t.keys, t.seg.Blocks, t.seg.Keys)}
	}
	if t.seg.Digest == nil && t.reading.digests == nil {
		return nil
	}
	image, err := t.filter.MarshalBinary()
	if err != nil {
		return err
	}
	digest := Digest(image)
	switch same := bytes.Equal(digest[:], t.seg.Digest); {
	case !same && t.reading.digests != nil:
		t.reading.digests[t.seg.ID] = digest
	case !same:
		return &DamageError{t.place, fmt.Sprintf("its filter's digest is %x, and its row says %x", digest[:6], t.seg.Digest[:min(6, len(t.seg.Digest))])}
	}
	t.reading.found.Digests++
	t.filter = nil
	return nil
}
