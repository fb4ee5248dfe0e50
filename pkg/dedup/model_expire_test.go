package dedup

import (
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
)

// ageing is what makes a history one with a retention: record i was sent i minutes
// after the base, most of them. The map forgets what has expired.
type ageing struct {
	base      time.Time
	retention time.Duration
}

// age gives half of the histories a retention.
func (s *story) age() {
	s.Exec(s.t, `INSERT INTO `+s.Relation("positions")+` (pipeline, topic_id, partition, next_offset, generation)
		VALUES ($1, $2, 0, 0, $3)`, s.id, [16]byte(s.topic), gen)
	if s.rng.IntN(2) == 0 {
		return
	}
	// Times of records are before those of commits, which stand in for missing ones.
	s.ageing = &ageing{time.Now().Add(-30 * 24 * time.Hour).Truncate(time.Minute), time.Duration(20+s.rng.IntN(80)) * time.Minute}
}

// sent is a batch's newest time: seldom none, or of a slow clock. A retry brings the
// record of then.
func (s *story) sent(b *batchOf) time.Time {
	if s.ageing == nil {
		return time.Time{}
	}
	at := s.base.Add(time.Duration(b.to) * time.Minute)
	switch s.rng.IntN(30) {
	case 0:
		return time.Time{}
	case 1:
		return at.Add(-10 * 24 * time.Hour)
	}
	if b.retry {
		return s.base.Add(time.Duration(s.rng.IntN(records)) * time.Minute)
	}
	return at
}

// aging is what the fence does to times, and notes with the effects how far the log
// had come.
func (s *story) aging(b *batchOf, newest time.Time) []pgtx.Statement {
	if s.ageing == nil {
		return nil
	}
	var out []pgtx.Statement
	if !b.retry && !newest.IsZero() {
		out = append(out, pgtx.Statement{
			Step: pgtx.StepFence,
			SQL: "UPDATE " + s.Relation("positions") + ` SET last_record_time = greatest(last_record_time, ($1)[1]),
				progress = CASE WHEN last_record_time IS NULL THEN progress
					ELSE greatest(progress, least(last_record_time, ($1)[1])) END`,
			Params: []pgtx.Param{pgtx.Times([]time.Time{newest})},
		})
	}
	return append(out, pgtx.Statement{
		Step: pgtx.StepEffect,
		SQL: "UPDATE " + pgx.Identifier{s.User, "effects"}.Sanitize() + ` SET at = p.last_record_time, progress = p.progress
			FROM ` + s.Relation("positions") + ` p WHERE at IS NULL`,
	})
}

func (s *story) expiring(conn *pgx.Conn, v *View) error {
	if s.ageing == nil {
		return nil
	}
	n, err := s.store.Expire(s.t.Context(), conn, patient, v, s.retention, nil)
	s.done["expired keys"] += int(n)
	return err
}

// windows is Compact's; wide ones, so that there is something to merge.
func (s *story) windows() func(Segment) int64 {
	if s.ageing == nil {
		return nil
	}
	return Windows(8 * s.retention)
}

// mayForget reports whether a key applied at one time may have expired when the log
// had come so far.
func (s *story) mayForget(at, progress *time.Time) bool {
	return s.ageing != nil && at != nil && progress != nil && at.Before(progress.Add(-s.retention))
}

// remembered is the map: keys that the log has. It has every key that is applied and
// cannot have expired, and no key that was never applied.
func (s *story) remembered() map[int]bool {
	s.t.Helper()
	applied := s.applied()
	if s.ageing == nil {
		return applied
	}
	var progress *time.Time
	if err := s.Owner.QueryRow(s.t.Context(), "SELECT progress FROM "+s.Relation("positions")).Scan(&progress); err != nil {
		s.t.Fatal(err)
	}
	rows, err := s.Owner.Query(s.t.Context(), "SELECT key, max(at) FROM effects GROUP BY key")
	if err != nil {
		s.t.Fatal(err)
	}
	there, latest := s.inLog(), map[int]*time.Time{}
	var key int
	var at *time.Time
	if _, err := pgx.ForEachRow(rows, []any{&key, &at}, func() error {
		latest[key] = at
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	for k := range universe {
		switch {
		case there[k] && !applied[k]:
			s.t.Errorf("key %d is in the log, and was never applied", k)
		case !there[k] && applied[k] && !s.mayForget(latest[k], progress):
			s.t.Errorf("FORGOTTEN: key %d of %v, progress %v", k, latest[k], progress)
		case !there[k] && applied[k]:
			s.done["keys gone"]++
		}
	}
	return there
}

// inLog reads what the tables hold.
func (s *story) inLog() map[int]bool {
	s.t.Helper()
	rows, err := s.Owner.Query(s.t.Context(), `SELECT r.fingerprints FROM `+s.Relation("logs")+` l
			JOIN `+s.Relation("runs")+` r ON r.log = l.id AND r.seq > l.sealed
		UNION ALL SELECT b.fingerprints FROM `+s.Relation("segments")+` g
			JOIN `+s.Relation("blocks")+` b ON b.segment = g.id WHERE g.state = 'live'`)
	if err != nil {
		s.t.Fatal(err)
	}
	keys := map[slot]bool{}
	var run []byte
	if _, err := pgx.ForEachRow(rows, []any{&run}, func() error {
		for ; len(run) >= 16; run = run[16:] {
			keys[slotAt(run)] = true
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	there := map[int]bool{}
	for k := range universe {
		there[k] = keys[slotOf(fpOf(k))]
	}
	return there
}
