package dedup

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// gateImage is a row of gates: the image stored under id holds every key of these
// segments. That stays true for ever, so neither manifest nor runs come into it.
type gateImage struct {
	id             stream.UUID
	segments       map[stream.UUID]bool
	keys, capacity int64
	digest         []byte
}

// inside is how many of the segments' keys the image holds, and how many it does
// not.
func (g *gateImage) inside(segments []*Segment) (in, out int64) {
	for _, seg := range segments {
		if g.segments[seg.ID] {
			in += seg.Keys
		} else {
			out += seg.Keys
		}
	}
	return in, out
}

// serves reports whether a gate can be made of the image: it has room for the keys
// that are to be added, and most of what it holds is still wanted. Otherwise one
// that was rebuilt because it is full, or full of expired keys, would come back.
func (g *gateImage) serves(segments []*Segment) bool {
	in, out := g.inside(segments)
	return g.keys+out <= g.capacity && !faded(g.keys-in, g.keys)
}

// covers reports whether it also spares most of the scan: nine of ten keys are in it.
func (g *gateImage) covers(segments []*Segment) bool {
	if g == nil {
		return false
	}
	in, out := g.inside(segments)
	return g.serves(segments) && out <= (in+out)/10
}

// gateImage reads the log's row, nil if there is none.
func (s *Store) gateImage(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, log int64) (*gateImage, error) {
	var g *gateImage
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT g.id, g.keys, g.capacity, g.digest, s.id FROM @schema@.gates g CROSS JOIN unnest(g.segments) AS s (id)
			WHERE g.log = $1`),
		Params: []pgtx.Param{pgtx.Int8(log)},
		Row: func(r pgtx.Row) error {
			if g == nil {
				g = &gateImage{segments: map[stream.UUID]bool{}}
			}
			var segment stream.UUID
			err := r.Scan((*[16]byte)(&g.id), &g.keys, &g.capacity, &g.digest, (*[16]byte)(&segment))
			g.segments[segment] = true
			return err
		},
	})
	return g, err
}

// loads is how many images are on their way at once: one comes while another is
// checked and unpacked.
const loads = 3

// recall takes from the cache what it has: filters of segments that have none, and
// the gate that the rebuild begins with. Until it returns, keys go to Postgres.
func (s *Store) recall(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, r *rebuilding) error {
	if s.tier == nil {
		return nil
	}
	var work errgroup.Group
	work.SetLimit(loads)
	var row *gateImage
	var gate *Filter
	if !r.good && r.gate == nil {
		var err error
		row, err = s.gateImage(ctx, conn, set, v.Log)
		if err != nil && !strings.HasPrefix(pgtx.Code(err), "42") { // a migration or a grant behind: there is none
			return err
		}
		if row != nil && row.serves(r.segments) {
			work.Go(func() error {
				gate = s.tier.load(ctx, row.id, row.digest)
				return nil
			})
		} else {
			row = nil
		}
	}
	filters := make([]*Filter, len(r.segments))
	for i, seg := range r.segments {
		if seg.filter == nil {
			work.Go(func() error {
				filters[i] = s.tier.load(ctx, seg.ID, seg.Digest)
				return nil
			})
		}
	}
	_ = work.Wait() // a load that failed is no filter
	v.mu.Lock()
	for i, seg := range r.segments {
		if filters[i] != nil {
			seg.filter = filters[i]
			v.offered.note(seg.ID)
		}
	}
	v.mu.Unlock()
	if row != nil {
		v.recalled(r, row, gate)
	}
	return ctx.Err() // loads that it ended said nothing
}

// recalled begins the rebuild with a gate from the cache, which may be nil.
func (v *View) recalled(r *rebuilding, g *gateImage, f *Filter) {
	v.mu.Lock()
	suits := f != nil && f.suits(v.gateShape(f.capacity))
	v.mu.Unlock()
	if !suits {
		v.offered.lost = g.id
		return
	}
	in, _ := g.inside(r.segments)
	f.gone = max(g.keys-in, 0)
	r.gate, r.covered, r.recalled = f, g.segments, true
	v.offered.gate = g
	v.offered.note(g.id)
}
