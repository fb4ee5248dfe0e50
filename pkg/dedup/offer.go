package dedup

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// offered is what a view knows of the images in the cache. It says when to offer
// what and nothing else: wrong, it costs time. Only whoever works on the view in
// the background looks at it.
type offered struct {
	when map[stream.UUID]time.Time // by id: stored, or found there
	gate *gateImage                // the log's row, as far as known
	lost stream.UUID               // id of a row whose image was not there
}

// again is when an image is offered once more: what the cache has forgotten is there
// the next day, and what it is about to let go of by age stays.
const again = 24 * time.Hour

func (o *offered) note(id stream.UUID) {
	if o.when == nil {
		o.when = map[stream.UUID]time.Time{}
	}
	o.when[id] = time.Now()
}

func (o *offered) due(id stream.UUID) bool { return time.Since(o.when[id]) > again }

// Offer stores the images that the cache does not have yet, as far as the view
// knows: the filters of its segments, and its gate when a tenth of the keys is not
// in the one that is there. It takes back those of segments that are gone. Call it
// behind Rebuild, Seal and Compact. An error costs a later rebuild some time and
// nothing else; call it again after the next of them.
func (s *Store) Offer(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) error {
	if s.tier == nil {
		return nil
	}
	done, err := v.background(ctx)
	if err != nil {
		return err
	}
	defer done()
	v.mu.Lock()
	segments, gate := v.segments, v.gate                                         // the gate holds every key of these
	if gate != nil && (gate.full() || !gate.suits(v.gateShape(gate.capacity))) { // nobody would begin with it
		gate = nil
	}
	v.mu.Unlock()
	if err := s.offerFilters(ctx, v, segments); err != nil {
		return err
	}
	if gate == nil || len(segments) == 0 {
		return nil
	}
	return s.offerGate(ctx, conn, set, v, segments, gate)
}

func (s *Store) offerFilters(ctx context.Context, v *View, segments []*Segment) error {
	wanted := map[stream.UUID]bool{}
	for _, seg := range segments {
		wanted[seg.ID] = true
		if seg.filter == nil || !v.offered.due(seg.ID) {
			continue
		}
		image, err := seg.filter.MarshalBinary()
		if err != nil {
			return err
		}
		if digest := Digest(image); bytes.Equal(digest[:], seg.Digest) { // nobody would take another
			if err := s.tier.store(ctx, seg.ID, image); err != nil {
				return err
			}
		}
		v.offered.note(seg.ID)
	}
	for id := range v.offered.when {
		if wanted[id] || v.offered.gate != nil && id == v.offered.gate.id {
			continue
		}
		if err := s.tier.store(ctx, id, nil); err != nil {
			return err
		}
		delete(v.offered.when, id)
	}
	return nil
}

// offerGate stores the gate's image under a new id, and then says in Postgres what
// it holds: an image that nobody knows of does no harm. Nobody adds to the gate
// meanwhile, since that is background work too; and a gate only gains keys, so the
// image has every key of the segments that were listed before it was made.
func (s *Store) offerGate(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, segments []*Segment, gate *Filter) error {
	covered := v.offered.gate.covers(segments)
	if covered && !v.offered.due(v.offered.gate.id) {
		return nil
	}
	there, err := s.gateImage(ctx, conn, set, v.Log)
	if err != nil {
		return err
	}
	if !covered && there.covers(segments) && there.id != v.offered.lost {
		v.offered.gate = there // another member's
		v.offered.note(there.id)
		return nil
	}
	g, image, err := v.image(gate)
	if err != nil || g == nil {
		return err
	}
	for _, seg := range segments {
		g.segments[seg.ID] = true
	}
	if err := s.tier.store(ctx, g.id, image); err != nil {
		return err
	}
	if err := s.setGateImage(ctx, conn, set, v.Log, g); err != nil {
		return err
	}
	v.offered.note(g.id)
	v.offered.gate = g
	if there == nil {
		return nil
	}
	delete(v.offered.when, there.id)
	return s.tier.store(ctx, there.id, nil)
}

func (s *Store) setGateImage(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, log int64, g *gateImage) error {
	return pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`INSERT INTO @schema@.gates (log, id, segments, keys, capacity, digest)
			SELECT l.id, $2, $3, $4, $5, $6 FROM @schema@.logs l WHERE l.id = $1 AND l.state = 'open'
			ON CONFLICT (log) DO UPDATE SET id = excluded.id, segments = excluded.segments, keys = excluded.keys,
				capacity = excluded.capacity, digest = excluded.digest, created_at = now()`),
		Params: []pgtx.Param{
			pgtx.Int8(log), pgtx.UUID(g.id), pgtx.UUIDs(slices.Collect(maps.Keys(g.segments))), pgtx.Int8(g.keys),
			pgtx.Int8(g.capacity), pgtx.Bytea(g.digest),
		},
	})
}

// image makes the gate's image, nil if it is not the view's any more. It takes as
// long as copying the gate does: too long to hold mu, so the gate is kept from being
// taken out of the view by copying.
func (v *View) image(gate *Filter) (*gateImage, []byte, error) {
	v.copying.Lock()
	defer v.copying.Unlock()
	v.mu.Lock()
	gone := v.gate != gate
	v.mu.Unlock()
	if gone {
		return nil, nil, nil
	}
	image, err := gate.MarshalBinary()
	digest := Digest(image)
	return &gateImage{id: stream.NewUUID(), segments: map[stream.UUID]bool{}, keys: gate.n, capacity: gate.capacity, digest: digest[:]}, image, err
}
