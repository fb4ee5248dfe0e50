package offsets

import (
	"time"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Stop is a partition that a member has stopped, and why, for whoever decides.
type Stop struct {
	Claim  stream.Claim // that stopped
	Code   string       // one word
	Text   string       // what happened
	Fix    string       // what to do next
	Holder string       // host and pid of the member
	Since  time.Time    // by the database's clock

	Unclaimed bool // the position is not this claim's: write it down whoever has it
}

// Stopped writes down that partitions stand still, each with the owner that its
// position has now: behind the next takeover or decision it is out of date. A claim that
// is not the position's any more writes nothing: somebody has decided about the
// partition, or has taken it over, since it stopped.
func (s *Store) Stopped(pipeline int64, holder string, stops []Stop) pgtx.Statement {
	claims := make([]stream.Claim, len(stops))
	var codes, texts, fixes []string
	unclaimed := make([]bool, len(stops))
	for i, x := range stops {
		claims[i], unclaimed[i] = x.Claim, x.Unclaimed
		codes, texts, fixes = append(codes, x.Code), append(texts, x.Text), append(fixes, x.Fix)
	}
	topics, numbers, _, owners := columns(claims)
	return pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`INSERT INTO @schema@.stops AS s (pipeline, topic_id, partition, owner, code, what, fix, next_offset, holder)
			SELECT $1, u.topic_id, u.partition, coalesce(p.owner, '00000000-0000-0000-0000-000000000000'), u.code, u.what, u.fix,
				p.next_offset, $2
			FROM unnest($3, $4, $5, $6, $7, $8, $9) AS u (topic_id, partition, owner, code, what, fix, unclaimed)
			LEFT JOIN @schema@.positions p
			  ON p.pipeline = $1 AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = ''
			WHERE u.unclaimed OR p.owner = u.owner
			ORDER BY u.topic_id, u.partition
			ON CONFLICT (pipeline, topic_id, partition) DO UPDATE
			SET owner = excluded.owner, code = excluded.code, what = excluded.what, fix = excluded.fix,
			    next_offset = excluded.next_offset, holder = excluded.holder,
			    since = CASE WHEN s.code = excluded.code THEN s.since ELSE excluded.since END`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.Text(holder), pgtx.UUIDs(topics), pgtx.Int4s(numbers), pgtx.UUIDs(owners),
			pgtx.Texts(nonNil(codes)), pgtx.Texts(nonNil(texts)), pgtx.Texts(nonNil(fixes)), pgtx.Bools(unclaimed),
		},
	}
}

// Runs deletes what was written about partitions that these claims run.
func (s *Store) Runs(pipeline int64, claims []stream.Claim) pgtx.Statement {
	topics, numbers, _, owners := columns(claims)
	return pgtx.Statement{
		Step: pgtx.StepWrite,
		SQL: s.sql(`DELETE FROM @schema@.stops s USING unnest($2, $3, $4) AS u (topic_id, partition, owner), @schema@.positions p
			WHERE s.pipeline = $1 AND s.topic_id = u.topic_id AND s.partition = u.partition
			  AND p.pipeline = $1 AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = '' AND p.owner = u.owner`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers), pgtx.UUIDs(owners)},
	}
}

// Look is what became of a partition that stands still.
type Look struct {
	Exists bool        // it has a position
	Owner  stream.UUID // of the position; zero: unclaimed
	Stop   bool        // what was written down about it still stands
}

// Looks reads what became of the partitions of these claims.
func (s *Store) Looks(pipeline int64, claims []stream.Claim, each func(stream.Partition, Look)) pgtx.Statement {
	topics, numbers, _, _ := columns(claims)
	return pgtx.Statement{
		Step: pgtx.StepFence,
		SQL: s.sql(`SELECT u.topic_id, u.partition, p.pipeline IS NOT NULL, coalesce(p.owner, '00000000-0000-0000-0000-000000000000'), s.pipeline IS NOT NULL
			FROM unnest($2, $3) AS u (topic_id, partition)
			LEFT JOIN @schema@.positions p ON p.pipeline = $1 AND p.topic_id = u.topic_id AND p.partition = u.partition AND p.lane = ''
			LEFT JOIN @schema@.stops s ON s.pipeline = $1 AND s.topic_id = u.topic_id AND s.partition = u.partition`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers)},
		Row: func(r pgtx.Row) error {
			var p stream.Partition
			var l Look
			err := r.Scan((*[16]byte)(&p.Topic), &p.Number, &l.Exists, (*[16]byte)(&l.Owner), &l.Stop)
			each(p, l)
			return err
		},
	}
}

// Standing is all that Postgres knows of one partition. A partition may have a
// position, a stop, or both.
type Standing struct {
	Topic      Topic // ID, Name, Partitions, Scope and Generation
	Partition  stream.Partition
	Exists     bool // it has a position
	Next       int64
	Epoch      int64 // of its claims
	Leader     int32
	Owner      stream.UUID // zero: unclaimed
	Holder     string
	Generation []byte
	Last       time.Time // newest record time that counts; zero: none
	Progress   time.Time // how far record times have come; zero: unknown
	Stop       Stop      // of the claim it has now; Code is empty: it is not stopped
}

// Standings returns all partitions of the pipeline's topics with one of these names,
// nil for all, by name, age of the topic, and number.
func (s *Store) Standings(pipeline int64, names []string, each func(Standing)) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepFence,
		SQL: s.sql(`SELECT t.topic_id, t.name, t.partitions, t.scope, t.generation, coalesce(p.partition, s.partition), p.pipeline IS NOT NULL,
				coalesce(p.next_offset, 0), coalesce(p.epoch, 0), coalesce(p.leader_epoch, -1),
				coalesce(p.owner, '00000000-0000-0000-0000-000000000000'), coalesce(p.holder, ''), p.generation,
				p.last_record_time, p.progress,
				coalesce(s.owner, '00000000-0000-0000-0000-000000000000'), coalesce(s.code, ''), coalesce(s.what, ''),
				coalesce(s.fix, ''), coalesce(s.holder, ''), s.since
			FROM (SELECT * FROM @schema@.positions WHERE pipeline = $1 AND lane = '') p
			FULL JOIN (SELECT s.* FROM @schema@.stops s
				LEFT JOIN @schema@.positions p USING (pipeline, topic_id, partition)
				WHERE s.pipeline = $1 AND coalesce(p.lane = '', true)
				  AND s.owner = coalesce(p.owner, '00000000-0000-0000-0000-000000000000')) s USING (pipeline, topic_id, partition)
			JOIN @schema@.topics t USING (pipeline, topic_id)
			WHERE t.name = ANY ($2) OR $2 IS NULL
			ORDER BY t.name, t.created_at, 6`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.Texts(names)},
		Row: func(r pgtx.Row) error {
			var x Standing
			var last, progress, since *time.Time
			err := r.Scan((*[16]byte)(&x.Topic.ID), &x.Topic.Name, &x.Topic.Partitions, &x.Topic.Scope, &x.Topic.Generation,
				&x.Partition.Number, &x.Exists, &x.Next, &x.Epoch, &x.Leader, (*[16]byte)(&x.Owner), &x.Holder, &x.Generation,
				&last, &progress, (*[16]byte)(&x.Stop.Claim.Owner), &x.Stop.Code, &x.Stop.Text, &x.Stop.Fix, &x.Stop.Holder, &since)
			x.Partition.Topic = x.Topic.ID
			for _, at := range []struct{ to, from *time.Time }{{&x.Last, last}, {&x.Progress, progress}, {&x.Stop.Since, since}} {
				if at.from != nil {
					*at.to = *at.from
				}
			}
			each(x)
			return err
		},
	}
}

// Forgot reports the changes of a topic's key rule that forgot keys.
func (s *Store) Forgot(pipeline int64, topic stream.UUID, each func()) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepFence,
		SQL: s.sql(`SELECT 1 FROM @schema@.decisions
			WHERE pipeline = $1 AND topic_id = $2 AND kind = 'change' AND detail -> 'kept' = 'false'`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(topic)},
		Row: func(pgtx.Row) error {
			each()
			return nil
		},
	}
}
