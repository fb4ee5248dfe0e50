package dedup

import (
	"context"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// LookUp decides what Check left open in these folds, in one round trip: which of
// the keys lie in a segment of their log. A filter's "maybe" is never believed.
//
// An answer counts only if its statement ran under the manifest that the view had
// at Check, or one of the view's own. Otherwise the fold stays Open: catch its view
// up, check again. An error says nothing about any commit: put the batch back.
func (s *Store) LookUp(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, folds ...*Fold) error {
	var stmts []pgtx.Statement
	var asks []*ask
	for _, f := range folds {
		if !f.Open() {
			continue
		}
		a := f.ask()
		asks, stmts = append(asks, a), append(stmts, s.lookUp(a))
	}
	if len(stmts) == 0 {
		return nil
	}
	if err := pgtx.Once(ctx, conn, set, stmts...); err != nil {
		return err
	}
	for _, a := range asks {
		a.settle()
	}
	return nil
}

// ask is one fold's question: its pairs, by segment and key. If a segment has no
// filter yet, it is the open keys alone, for all segments of the log.
type ask struct {
	fold     *Fold
	keys     [][]byte
	segments []stream.UUID
	manifest stream.UUID
	hits     []int64 // numbers of keys, from 1
}

func (f *Fold) ask() *ask {
	a := &ask{fold: f}
	if len(f.pairs) == 0 {
		run := make([]byte, 0, 16*len(f.open))
		for i, q := range f.open {
			run = q.append(run)
			a.keys = append(a.keys, run[16*i:])
		}
		return a
	}
	run := make([]byte, 0, 16*len(f.pairs))
	for i, p := range f.pairs {
		run = p.append(run)
		a.keys, a.segments = append(a.keys, run[16*i:]), append(a.segments, f.among[p.among].seg.ID)
	}
	return a
}

// found is the group of the key at i, which a segment has.
func (a *ask) found(i int64) int32 {
	f := a.fold
	if a.segments == nil {
		return f.open[i].group
	}
	p := f.pairs[i]
	f.among[p.among].hits++
	return p.group
}

// settle takes an answer that ran under the right manifest. A question to all
// segments is answered by those of a seal or compaction of the view's own as well,
// which came true meanwhile; one to some of them is not: they may be dead by then.
func (a *ask) settle() {
	f := a.fold
	own := f.view.adopt(a.manifest)
	if a.manifest != f.manifest && (a.segments != nil || !own) {
		return
	}
	for _, n := range a.hits {
		if g := a.found(n - 1); !f.seen[g] {
			f.seen[g] = true
			f.Confirmed++
		}
	}
	f.open = f.open[:0]
	f.view.hit(f.among)
}

// holds finds key k in block b: by position, which is quick and looked for once where
// the key is there, and where that found the bytes across two keys, by looking at
// each key.
const holds = `CASE position(k.key IN b.fingerprints) % 16
	WHEN 1 THEN true
	ELSE position(k.key IN b.fingerprints) > 0 AND EXISTS (
		SELECT FROM generate_series(1, octet_length(b.fingerprints), 16) AS at
		WHERE substr(b.fingerprints, at, 16) = k.key) END`

// lookUp is the statement. Segments are joined by log and state in the snapshot
// that also gives the manifest, and the only block that may hold a key is the last
// one that begins at or before it.
func (s *Store) lookUp(a *ask) pgtx.Statement {
	stmt := pgtx.Statement{
		Step:   pgtx.StepLog,
		Params: []pgtx.Param{pgtx.Int8(a.fold.view.Log), pgtx.Byteas(a.keys)},
		Row:    func(r pgtx.Row) error { return r.Scan((*[16]byte)(&a.manifest), &a.hits) },
	}
	if a.segments != nil {
		stmt.Params = append(stmt.Params, pgtx.UUIDs(a.segments))
		stmt.SQL = s.sql(`SELECT l.manifest, (SELECT array_agg(k.n)
				FROM unnest($2, $3) WITH ORDINALITY AS k (key, segment, n)
				JOIN @schema@.segments s ON s.id = k.segment AND s.log = l.id AND s.state = 'live'
				CROSS JOIN LATERAL (SELECT b.fingerprints FROM @schema@.blocks b
					WHERE b.segment = s.id AND b.first <= k.key ORDER BY b.first DESC LIMIT 1) b
				WHERE ` + holds + `)
			FROM @schema@.logs l WHERE l.id = $1`)
		return stmt
	}
	stmt.SQL = s.sql(`WITH s AS MATERIALIZED (
			SELECT id FROM @schema@.segments WHERE log = $1 AND state = 'live' ORDER BY keys DESC)
		SELECT l.manifest, (SELECT array_agg(k.n) FROM unnest($2) WITH ORDINALITY AS k (key, n)
			WHERE EXISTS (SELECT FROM s
				CROSS JOIN LATERAL (SELECT b.fingerprints FROM @schema@.blocks b
					WHERE b.segment = s.id AND b.first <= k.key ORDER BY b.first DESC LIMIT 1) b
				WHERE ` + holds + `))
		FROM @schema@.logs l WHERE l.id = $1`)
	return stmt
}
