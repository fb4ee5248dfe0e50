package dedup

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Store holds the SQL of this package for one schema. It is immutable.
type Store struct {
	schema string
	sizes  sizes
	tier   *tier // nil: no cache
}

// New returns the store of the schema with this (unquoted) name.
func New(schema string) *Store {
	return &Store{schema: pgx.Identifier{schema}.Sanitize(), sizes: usual}
}

func (s *Store) sql(text string) string { return strings.ReplaceAll(text, "@schema@", s.schema) }

// WholeTopic stands for the partition's number where a scope is a whole topic: its
// one log has none.
const WholeTopic int32 = -1

// Create opens a log for each partition number, in the transaction that creates
// their positions: scope partition.
func (s *Store) Create(ctx context.Context, tx *pgtx.Tx, pipeline int64, topic stream.UUID, first, count int32, generation []byte) error {
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`INSERT INTO @schema@.logs (pipeline, topic_id, partition, generation)
			SELECT $1, $2, n, $5 FROM generate_series($3, $3 + $4 - 1) AS n
			WHERE NOT EXISTS (SELECT FROM @schema@.logs WHERE pipeline = $1 AND topic_id = $2 AND partition = n)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(topic), pgtx.Int4(first), pgtx.Int4(count), pgtx.Bytea(generation),
		},
	})
}

// CreateTopic opens the topic's one log, if it has none that is open, in the
// transaction that creates the topic's positions: scope topic.
func (s *Store) CreateTopic(ctx context.Context, tx *pgtx.Tx, pipeline int64, topic stream.UUID, generation []byte) error {
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`INSERT INTO @schema@.logs (pipeline, topic_id, generation)
			SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT FROM @schema@.logs
				WHERE pipeline = $1 AND topic_id = $2 AND partition IS NULL AND state = 'open')`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(topic), pgtx.Bytea(generation)},
	})
}

// Range is what a run did to one partition: [From, To) of its offsets, and the
// records read, applied, duplicate and dead among them.
type Range struct {
	Claim                          stream.Claim // Claim.Next is From
	To                             int64
	Read, Applied, Duplicate, Dead int64
}

// Run is one log's part of a commit. Head is the view's head_id, which must still
// be the log's; ID becomes the new one.
type Run struct {
	View         *View
	ID           stream.UUID
	Newest       time.Time
	Fingerprints []byte // sorted, 16 bytes each; empty, never nil, when there is no new key
	Ranges       []Range
}

// Append is steps 3 and 4: lock the logs in id order, require each view's head_id
// (pgtx.CodeLogMoved otherwise: catch up and check again), require the transaction
// of the fence (pgtx.CodeOtherTx) and write the runs.
func (s *Store) Append(xact string, runs []Run) pgtx.Statement {
	var (
		logs, rLogs, from, to, epochs, read, applied, duplicate, dead []int64
		generations, fps                                              [][]byte
		heads, ids, topics, owners                                    []stream.UUID
		numbers                                                       []int32
		lanes                                                         []string
		newest                                                        []time.Time
	)
	for _, r := range runs {
		logs, generations = append(logs, r.View.Log), append(generations, r.View.Generation)
		heads, ids = append(heads, r.View.HeadID), append(ids, r.ID)
		newest, fps = append(newest, r.Newest), append(fps, r.Fingerprints)
		for _, g := range r.Ranges {
			rLogs, lanes = append(rLogs, r.View.Log), append(lanes, "")
			topics, numbers = append(topics, g.Claim.Partition.Topic), append(numbers, g.Claim.Partition.Number)
			from, to = append(from, g.Claim.Next), append(to, g.To)
			owners, epochs = append(owners, g.Claim.Owner), append(epochs, g.Claim.Epoch)
			read, applied = append(read, g.Read), append(applied, g.Applied)
			duplicate, dead = append(duplicate, g.Duplicate), append(dead, g.Dead)
		}
	}
	return pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT @schema@.append_runs($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16,
			$17, $18, $19)`),
		Params: []pgtx.Param{
			pgtx.Text(xact), pgtx.Int8s(logs), pgtx.Byteas(generations), pgtx.UUIDs(heads), pgtx.UUIDs(ids),
			pgtx.Times(newest), pgtx.Byteas(fps), pgtx.Int8s(rLogs), pgtx.UUIDs(topics), pgtx.Int4s(numbers),
			pgtx.Texts(lanes), pgtx.Int8s(from), pgtx.Int8s(to), pgtx.UUIDs(owners), pgtx.Int8s(epochs),
			pgtx.Int8s(read), pgtx.Int8s(applied), pgtx.Int8s(duplicate), pgtx.Int8s(dead),
		},
	}
}

// Heads returns the head_id and manifest of these logs, of those that are open.
func (s *Store) Heads(logs []int64, row func(log int64, headID, manifest stream.UUID)) pgtx.Statement {
	return pgtx.Statement{
		Step:   pgtx.StepLog,
		SQL:    s.sql(`SELECT id, head_id, manifest FROM @schema@.logs WHERE id = ANY ($1) AND state = 'open'`),
		Params: []pgtx.Param{pgtx.Int8s(logs)},
		Row: func(r pgtx.Row) error {
			var log int64
			var id, manifest stream.UUID
			err := r.Scan(&log, (*[16]byte)(&id), (*[16]byte)(&manifest))
			row(log, id, manifest)
			return err
		},
	}
}
