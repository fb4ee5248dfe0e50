package offsets

import (
	"context"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Outcome is what a takeover found for one partition.
type Outcome string

// The outcomes of a takeover.
const (
	Taken      Outcome = "taken"      // the claim is ours
	Locked     Outcome = "locked"     // a transaction holds the row: pause, take over in the background
	Missing    Outcome = "missing"    // no row: never simply the start setting
	Generation Outcome = "generation" // the pipeline's meaning changed: stop visibly
)

// Taking is one partition a takeover asks for. The owner is drawn once per claim:
// a retry with the same owner changes nothing.
type Taking struct {
	Claim      stream.Claim
	Generation []byte
}

// Answer is the answer for one partition: the claim with its position, leader
// epoch and epoch filled in from the row, also when the row was locked.
type Answer struct {
	Outcome Outcome
	Claim   stream.Claim
	Holder  string // who holds or held it: host and pid
}

// Takeover writes new owners into the positions of takings. Without wait, rows
// that a transaction holds are skipped (Locked); with wait, the statement waits
// for them up to the lock timeout. Answers come in the order of takings.
func (s *Store) Takeover(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, holder string,
	takings []Taking, wait bool,
) ([]Answer, error) {
	found := make(map[stream.Partition]Answer, len(takings))
	err := pgtx.Once(ctx, conn, set, s.Take(pipeline, holder, takings, wait, func(a Answer) { found[a.Claim.Partition] = a }))
	if err != nil {
		return nil, err
	}
	answers := make([]Answer, len(takings))
	for i, t := range takings {
		a := found[t.Claim.Partition]
		a.Claim.TopicName, a.Claim.Owner = t.Claim.TopicName, t.Claim.Owner
		answers[i] = a
	}
	return answers, nil
}

// Take is Takeover as a statement of the caller's transaction. Answers come in any
// order, without the topic's name and the owner; answer may be nil.
func (s *Store) Take(pipeline int64, holder string, takings []Taking, wait bool, answer func(Answer)) pgtx.Statement {
	claims := make([]stream.Claim, len(takings))
	generations := make([][]byte, len(takings))
	for i, t := range takings {
		claims[i], generations[i] = t.Claim, t.Generation
	}
	topics, numbers, lanes, owners := columns(claims)
	return pgtx.Statement{
		Step: pgtx.StepFence,
		SQL: s.sql(`SELECT topic_id, partition, outcome, coalesce(next_offset, 0), coalesce(leader_epoch, -1),
			coalesce(epoch, 0), coalesce(holder, '') FROM @schema@.takeover($1, $2, $3, $4, $5, $6, $7, $8)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers), pgtx.Texts(lanes), pgtx.UUIDs(owners),
			pgtx.Byteas(generations), pgtx.Text(holder), pgtx.Bool(wait),
		},
		Row: func(r pgtx.Row) error {
			if answer == nil {
				return nil
			}
			var a Answer
			c := &a.Claim
			err := r.Scan((*[16]byte)(&c.Partition.Topic), &c.Partition.Number, (*string)(&a.Outcome), &c.Next,
				&c.LeaderEpoch, &c.Epoch, &a.Holder)
			answer(a)
			return err
		},
	}
}

// Row is a position row as it stands.
type Row struct {
	Partition   stream.Partition
	Next        int64
	LeaderEpoch int32       // before Next, -1 when unknown
	Owner       stream.UUID // zero when nobody has claimed it, ever or since it was decided about
	Holder      string
	Generation  []byte
	Rewound     int64 // the furthest that a decision took it back from, -1: never
}

// Read returns the rows of the partitions; one that is missing is left out. With
// lock each row is locked in order, which waits for a server still committing:
// that is how an unknown COMMIT is settled. It is one statement of a transaction.
func (s *Store) Read(pipeline int64, parts []stream.Partition, lock bool, row func(Row)) pgtx.Statement {
	topics, numbers := make([]stream.UUID, len(parts)), make([]int32, len(parts))
	for i, p := range parts {
		topics[i], numbers[i] = p.Topic, p.Number
	}
	text := `SELECT p.topic_id, p.partition, p.next_offset, p.leader_epoch, coalesce(p.owner, '00000000-0000-0000-0000-000000000000'),
			p.holder, p.generation, coalesce(p.rewound_from, -1)
		FROM @schema@.positions p
		JOIN unnest($2, $3) AS u (topic_id, partition) ON p.topic_id = u.topic_id AND p.partition = u.partition
		WHERE p.pipeline = $1 AND p.lane = '' ORDER BY p.topic_id, p.partition`
	if lock {
		text += ` FOR NO KEY UPDATE OF p`
	}
	return pgtx.Statement{
		Step: pgtx.StepFence, SQL: s.sql(text),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers)},
		Row: func(r pgtx.Row) error {
			var p Row
			err := r.Scan((*[16]byte)(&p.Partition.Topic), &p.Partition.Number, &p.Next, &p.LeaderEpoch, (*[16]byte)(&p.Owner),
				&p.Holder, &p.Generation, &p.Rewound)
			row(p)
			return err
		},
	}
}
