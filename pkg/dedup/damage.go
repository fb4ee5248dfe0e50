package dedup

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// ErrDamaged says that a live segment is not what its row says, and not because the
// log changed while it was read. Reading again finds the same: stop, and have people
// look. Keys are missing, so records may be applied twice.
var ErrDamaged = errors.New("a segment is damaged")

// recount tells a segment that was read while it went away, ErrDropView, from one that
// lacks keys, ErrDamaged: it counts in one statement, which also says under which
// manifest.
func (s *Store) recount(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, seg *Segment) error {
	var manifest stream.UUID
	var keys int64
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT l.manifest, (SELECT coalesce(sum(octet_length(fingerprints)), 0) / 16 FROM @schema@.blocks WHERE segment = $2)::bigint
			FROM @schema@.logs l WHERE l.id = $1`),
		Params: []pgtx.Param{pgtx.Int8(v.Log), pgtx.UUID(seg.ID)},
		Row:    func(r pgtx.Row) error { return r.Scan((*[16]byte)(&manifest), &keys) },
	})
	if err != nil {
		return err
	}
	if manifest != v.named() || keys == seg.Keys {
		return fmt.Errorf("%w: its segments changed", ErrDropView)
	}
	return fmt.Errorf("%w: segment %s has %d keys, expected %d", ErrDamaged, seg.ID, keys, seg.Keys)
}
