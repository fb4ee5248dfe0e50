package dedup

import (
	"fmt"
	"testing"
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Unbounded deletes from several nodes once locked each other and timed out, at tens
// of millions of rows, while nothing else got through. So clean-up goes in small
// steps that find their rows by an index, and no commit ever waits for one.

// cleanUp is each of the steps, once.
func (w *world) cleanUp(set pgtx.Settings, log int64) map[string]func() (int64, error) {
	ctx := w.t.Context()
	return map[string]func() (int64, error){
		"Clean": func() (int64, error) { return w.store.Clean(ctx, w.conn, set, log) },
		"Sweep": func() (int64, error) { return w.store.Sweep(ctx, w.conn, set, time.Hour) },
		"Prune": func() (int64, error) { return w.store.Prune(ctx, w.conn, set, log, time.Hour) },
	}
}

// litter writes a long audit trail, and blocks of segments that are live, dead and
// not there: per segment as many as a hundred steps remove.
func (w *world) litter(log int64, runs, blocks int) {
	w.Exec(w.t, `INSERT INTO `+w.Relation("runs")+` (log, seq, run_id, ranges, committed_at)
		SELECT $1, n, gen_random_uuid(), '{}', now() - interval '8 days' FROM generate_series(1, $2) n`, log, runs)
	w.Exec(w.t, "UPDATE "+w.Relation("logs")+" SET head = $2, sealed = $2 WHERE id = $1", log, runs)
	for n, state := range []string{"live", "live", "live", "live", "dead", "dead", ""} {
		id := stream.NewUUID()
		if n%2 == 0 {
			id = idOn(byte(n))
		}
		if state != "" {
			w.Exec(w.t, `INSERT INTO `+w.Relation("segments")+` (id, log, state, tier, keys, blocks, first_run, last_run)
				VALUES ($1, $2, $3, 0, $4, $4, 1, 1)`, [16]byte(id), log, state, blocks)
		}
		w.Exec(w.t, `INSERT INTO `+w.Relation("blocks")+` (segment, first, fingerprints)
			SELECT $1, f, f FROM generate_series(1, $2::bigint) n, LATERAL (SELECT int8send(n) || int8send(n) AS f) x`, [16]byte(id), blocks)
	}
}

// TestCleanUpReadsLittle: whatever there is, a step reads about what it removes.
func TestCleanUpReadsLittle(t *testing.T) {
	t.Parallel()
	for _, analyzed := range []bool{false, true} {
		t.Run(fmt.Sprint("analyzed ", analyzed), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 1)
			w.store.sizes.clear, w.store.sizes.prune = 50, 50
			log := w.load(0).Log
			w.litter(log, 20_000, 5000)
			if analyzed {
				for _, table := range []string{"runs", "blocks", "segments", "logs"} {
					w.Exec(t, "ANALYZE "+w.Relation(table))
				}
			}
			for name, step := range w.cleanUp(patient, log) {
				before := w.rowsRead()
				n, err := step()
				if err != nil || n < 50 || n > 60 {
					t.Errorf("%s: %d rows, %v", name, n, err)
				}
				if read := w.rowsRead() - before; read > 2000 {
					t.Errorf("%s removed %d rows and read %d", name, n, read)
				}
			}
		})
	}
}

// rowsRead is how many rows of runs and blocks w's session has been given by scans of
// tables and indexes, in all.
func (w *world) rowsRead() int64 {
	w.t.Helper()
	if _, err := w.conn.Exec(w.t.Context(), "SELECT pg_stat_force_next_flush()"); err != nil {
		w.t.Fatal(err)
	}
	var n int64
	if err := w.Owner.QueryRow(w.t.Context(), `SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_user_tables
		WHERE schemaname = $1 AND relname ~ '^(runs|blocks)'`, w.Schema).Scan(&n); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// TestCleanUpWaitsForNobody: a commit holds its log's row and has written a run, and
// every step ends all the same. So no commit waits for one either: locks that two
// transactions cannot hold at once are so both ways.
func TestCleanUpWaitsForNobody(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v := w.load(0)
	w.litter(v.Log, 100, 20)
	w.Exec(t, "UPDATE "+w.Relation("logs")+" SET head_id = run_id FROM "+w.Relation("runs")+" r WHERE r.log = id AND seq = head")
	v = w.load(0)
	var xact string
	tx, err := pgtx.Begin(t.Context(), w.Conn(t), patient, pgtx.Statement{
		SQL: "SELECT pg_catalog.pg_current_xact_id()::text", Row: func(r pgtx.Row) error { return r.Scan(&xact) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := tx.Run(t.Context(), w.store.Append(xact, []Run{{View: v, ID: stream.NewUUID(), Fingerprints: fps(1, 2, 3)}})); err != nil {
		t.Fatal(err)
	}
	at := patient
	at.Lock = 100 * time.Millisecond // a wait would be for the commit, which does not end
	for name, step := range w.cleanUp(at, v.Log) {
		if n, err := step(); err != nil || n == 0 {
			t.Errorf("%s: %d rows, %v", name, n, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Error(err)
	}
}
