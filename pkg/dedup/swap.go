package dedup

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// draw makes the manifest of the change. A seal and a merge hand the second half on,
// the era: it tells whether anything has expired between two manifests.
func (p *swap) draw(from stream.UUID) {
	p.from, p.manifest = from, stream.NewUUID()
	if p.segment != nil || p.gen != nil {
		copy(p.manifest[8:], from[8:])
	}
}

// swap makes a change of the log's segments, a seal, a merge or an expiry, true: in
// the database, and behind its COMMIT in memory. The view knows what it sent before it is sent, so whoever meets
// the new manifest first (a look-up, a catch-up) takes it at once.
//
//	COMMIT answered         the view takes it
//	an error is answered    nothing happened; the view forgets it
//	no answer               nothing leaves the exact set until the manifest is seen:
//	                        by a look-up or catch-up, or by settle before the next task
func (s *Store) swap(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, p *swap) error {
	v.mu.Lock()
	p.draw(v.manifest)
	v.pending = p
	v.mu.Unlock()
	err := pgtx.Once(ctx, conn, set, s.change(v.Log, p))
	switch {
	case err == nil:
		v.adopt(p.manifest)
		return nil
	case errors.Is(err, pgtx.ErrCommitUnknown):
		return err
	}
	v.forget(p)
	switch pgtx.Code(err) {
	case pgtx.CodeManifest, pgtx.CodeLogMoved, pgtx.CodeLogClosed:
		err = fmt.Errorf("%w: %w", ErrDropView, err)
	}
	if p.segment != nil {
		err = errors.Join(err, s.discard(ctx, conn, set, p.segment))
	}
	return err
}

// forget ends a swap that did not happen, and never will.
func (v *View) forget(p *swap) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.pending == p {
		v.pending = nil
	}
}

func (s *Store) change(log int64, p *swap) pgtx.Statement {
	if p.expiry != nil {
		return s.expireSegments(log, p)
	}
	null := func(oid uint32) pgtx.Param { return pgtx.Binary(oid, nil) }
	segment, digest, dead, sealed, head := null(uuidOID), pgtx.Bytea(nil), null(uuidsOID), null(int8OID), null(uuidOID)
	var keys, blocks, learned int64
	if p.segment != nil {
		segment, digest = pgtx.UUID(p.segment.ID), pgtx.Bytea(p.segment.Digest)
		keys, blocks = p.segment.Keys, p.segment.Blocks
	}
	if len(p.dead) > 0 {
		dead = pgtx.UUIDs(ids(p.dead))
	}
	if p.gen != nil {
		sealed, head, learned = pgtx.Int8(p.gen.head), pgtx.UUID(p.gen.headID), p.gen.learned
	}
	return pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL:  s.sql(`SELECT @schema@.swap_segments($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)`),
		Params: []pgtx.Param{
			pgtx.Int8(log), pgtx.UUID(p.from), pgtx.UUID(p.manifest), segment, pgtx.Int8(keys), pgtx.Int8(blocks), digest, dead,
			sealed, head, pgtx.Int8(learned),
		},
	}
}

// settle reads what became of a swap whose COMMIT got no answer. The row lock waits
// for a server that is still committing it. One that has not even begun to may
// still do so later; the view will not know that manifest then, and is dropped.
func (s *Store) settle(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) error {
	v.mu.Lock()
	p := v.pending
	v.mu.Unlock()
	if p == nil {
		return nil
	}
	var manifest stream.UUID
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT manifest FROM @schema@.logs WHERE id = $1 FOR NO KEY UPDATE`),
		Params: []pgtx.Param{pgtx.Int8(v.Log)},
		Row:    func(r pgtx.Row) error { return r.Scan((*[16]byte)(&manifest)) },
	})
	if err != nil {
		return err
	}
	if !v.adopt(manifest) {
		return fmt.Errorf("%w: its segments are others", ErrDropView)
	}
	v.forget(p)
	return nil
}

// discardTime bounds giving up a segment.
const discardTime = 3 * time.Second

// turn waits until nothing else works on the view in the background, and until it is
// known what became of the view's last change. done ends the turn.
func (s *Store) turn(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View) (done func(), err error) {
	if done, err = v.background(ctx); err != nil {
		return nil, err
	}
	if err = s.settle(ctx, conn, set, v); err != nil {
		done()
		return nil, err
	}
	return done, nil
}

// discard gives up a segment that was not made live; clean-up removes its blocks. It
// does so as well where ctx has ended and taken the connection with it: left behind,
// the segment would keep others of its log from being begun, and in scope topic a
// foreign seal ends a builder's context as a matter of course.
func (s *Store) discard(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, seg *Segment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), discardTime)
	defer cancel()
	if conn.IsClosed() { // its place in the pool is still ours
		other, err := pgx.ConnectConfig(ctx, conn.Config())
		if err != nil {
			return nil // Sweep will find it
		}
		defer func() { _ = other.Close(ctx) }() // nothing is left to lose
		conn = other
	}
	return pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step:   pgtx.StepWrite,
		SQL:    s.sql(`UPDATE @schema@.segments SET state = 'dead' WHERE id = $1 AND state = 'building'`),
		Params: []pgtx.Param{pgtx.UUID(seg.ID)},
	})
}
