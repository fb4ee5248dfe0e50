package dedup

import (
	"context"
	"strings"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Renewal is what Postgres says about a log's filters and should not.
type Renewal struct {
	Log      int64
	Segments int
	Keys     int64 // read
	Gate     bool  // there is an image of a gate that rebuilds begin with

	digests map[stream.UUID][32]byte // what they are instead
}

// Digests is the number of segments whose stored digest is not that of the filter
// that their blocks make.
func (r *Renewal) Digests() int { return len(r.digests) }

// Renewal reads a log as of one moment, as Verify does, and compares digests. A
// *DamageError is about blocks or runs: filters cannot be made from those.
func (s *Store) Renewal(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, log int64) (Renewal, error) {
	wrong := Renewal{Log: log, digests: map[stream.UUID][32]byte{}}
	tx, err := pgtx.Snapshot(ctx, conn, set)
	if err != nil {
		return wrong, err
	}
	r := &reading{store: s, tx: tx, digests: wrong.digests}
	if err = r.open(ctx, log); err == nil {
		err = r.all(ctx)
	}
	tx.Rollback(ctx)
	wrong.Segments, wrong.Keys = r.found.Segments, r.found.Keys
	if err != nil {
		return wrong, err
	}
	gate, err := s.gateImage(ctx, conn, set, log)
	if err != nil && !strings.HasPrefix(pgtx.Code(err), "42") { // a migration or a grant behind: there is none
		return wrong, err
	}
	wrong.Gate = gate != nil
	return wrong, nil
}

// Renew writes the right digests and gives up the gate's image. A segment never
// changes, so a digest is right whatever became of its log meanwhile. Where one was
// wrong the log gets a new manifest: members drop their views, and load filters
// that were made from the blocks or are believed for the new digest.
func (s *Store) Renew(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, r *Renewal) error {
	var stmts []pgtx.Statement
	if len(r.digests) > 0 {
		ids, digests := []stream.UUID{}, [][]byte{}
		for id, d := range r.digests {
			ids, digests = append(ids, id), append(digests, d[:])
		}
		stmts = append(stmts, pgtx.Statement{
			Step:   pgtx.StepLog,
			SQL:    s.sql(`UPDATE @schema@.logs SET manifest = $2 WHERE id = $1`),
			Params: []pgtx.Param{pgtx.Int8(r.Log), pgtx.UUID(stream.NewUUID())},
		}, pgtx.Statement{
			Step: pgtx.StepWrite,
			SQL: s.sql(`UPDATE @schema@.segments s SET filter_digest = u.digest FROM unnest($1, $2) AS u (id, digest)
				WHERE s.id = u.id AND s.state = 'live'`),
			Params: []pgtx.Param{pgtx.UUIDs(ids), pgtx.Byteas(digests)},
		})
	}
	if r.Gate {
		stmts = append(stmts, pgtx.Statement{
			Step:   pgtx.StepWrite,
			SQL:    s.sql(`UPDATE @schema@.gates SET segments = '{}' WHERE log = $1`), // it serves nobody
			Params: []pgtx.Param{pgtx.Int8(r.Log)},
		})
	}
	if len(stmts) == 0 {
		return nil
	}
	return pgtx.Once(ctx, conn, set, stmts...)
}
