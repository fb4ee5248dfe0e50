package offsets

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Pipeline is the row of one configured flow.
type Pipeline struct {
	ID         int64
	Name       string
	Salt       [16]byte // of the fingerprints; drawn at the first start, kept for ever
	Generation []byte
	Group      string
	ClusterID  string // of the Kafka cluster
	SystemID   int64  // system identifier of the Postgres cluster
	SinkTables []string
	Settings   string // JSON, what Generation digests
}

func (p *Pipeline) scan(r pgtx.Row) error {
	var salt []byte
	err := r.Scan(&p.ID, &salt, &p.Generation, &p.Group, &p.ClusterID, &p.SystemID, &p.Settings)
	copy(p.Salt[:], salt)
	return err
}

// Errors of Register. Each says what is in the way; an operator decides. A pipeline
// that was moved is told its new clusters by processor pipeline adopt.
var (
	ErrOtherCluster  = errors.New("the pipeline belongs to another Kafka cluster")
	ErrOtherDatabase = errors.New("the pipeline belongs to another Postgres cluster (restored or copied database)")
	ErrOtherGroup    = errors.New("the pipeline runs under another consumer group")
	ErrTaken         = errors.New("another pipeline has this consumer group or writes this topic to this table")
)

// Register creates the pipeline's row at the first start and checks it at every
// other, under a lock on the row that serialises members starting together. want
// carries a fresh salt, used only if the row is new. share permits a group or a
// (topic, table) that another pipeline uses.
func (s *Store) Register(ctx context.Context, tx *pgtx.Tx, want Pipeline, topics []string, share bool) (Pipeline, error) {
	have := want
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`INSERT INTO @schema@.pipelines
			(name, salt, generation, group_name, cluster_id, system_identifier, sink_tables, settings)
			VALUES ($1, $2, $3, $4, $5, $6, $7, $8::jsonb) ON CONFLICT (name) DO NOTHING`),
		Params: []pgtx.Param{
			pgtx.Text(want.Name), pgtx.Bytea(want.Salt[:]), pgtx.Bytea(want.Generation), pgtx.Text(want.Group),
			pgtx.Text(want.ClusterID), pgtx.Int8(want.SystemID), pgtx.Texts(nonNil(want.SinkTables)),
			pgtx.Text(cmp.Or(want.Settings, "{}")),
		},
	}, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`SELECT id, salt, generation, group_name, cluster_id, system_identifier, settings::text
			FROM @schema@.pipelines
			WHERE name = $1 FOR UPDATE`),
		Params: []pgtx.Param{pgtx.Text(want.Name)},
		Row:    have.scan,
	})
	if err != nil {
		return Pipeline{}, err
	}
	switch {
	case have.Group != want.Group:
		return have, fmt.Errorf("%w: it is %q, configured is %q", ErrOtherGroup, have.Group, want.Group)
	case have.ClusterID != want.ClusterID:
		return have, fmt.Errorf("%w: it is %q, connected is %q; processor pipeline adopt accepts it", ErrOtherCluster, have.ClusterID, want.ClusterID)
	case have.SystemID != want.SystemID:
		return have, fmt.Errorf("%w: its system identifier is %d, connected is %d; processor pipeline adopt accepts it", ErrOtherDatabase, have.SystemID, want.SystemID)
	}
	if !share {
		if err := s.unshared(ctx, tx, have, topics); err != nil {
			return have, err
		}
	}
	return have, nil
}

// unshared refuses a second pipeline on the same group or the same (topic, table).
func (s *Store) unshared(ctx context.Context, tx *pgtx.Tx, p Pipeline, topics []string) error {
	var other, what string
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`SELECT p.name, CASE WHEN p.group_name = $2 THEN 'group ' || $2 ELSE 'topic ' || t.name END
			FROM @schema@.pipelines p LEFT JOIN @schema@.topics t ON t.pipeline = p.id AND t.name = ANY ($3)
			WHERE p.name <> $1 AND (p.group_name = $2 OR (t.name IS NOT NULL AND p.sink_tables && $4)) LIMIT 1`),
		Params: []pgtx.Param{pgtx.Text(p.Name), pgtx.Text(p.Group), pgtx.Texts(topics), pgtx.Texts(nonNil(p.SinkTables))},
		Row:    func(r pgtx.Row) error { return r.Scan(&other, &what) },
	})
	if err == nil && other != "" {
		err = fmt.Errorf("%w: pipeline %q, %s", ErrTaken, other, what)
	}
	return err
}

func nonNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// Topic is the row of one topic of a pipeline.
type Topic struct {
	ID         stream.UUID
	Name       string
	Partitions int32 // the stored count: keys are on these partitions
	Scope      stream.Scope
	Start      string // the start setting as resolved at the first start
	Generation []byte
}

// Topics returns the pipeline's topic rows with one of these names, nil for all, also
// those of a topic that was deleted and created again: same name, other id.
func (s *Store) Topics(ctx context.Context, tx *pgtx.Tx, pipeline int64, names []string) ([]Topic, error) {
	var topics []Topic
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`SELECT topic_id, name, partitions, scope, start, generation FROM @schema@.topics
			WHERE pipeline = $1 AND (name = ANY ($2) OR $2 IS NULL) ORDER BY name, created_at`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.Texts(names)},
		Row: func(r pgtx.Row) error {
			var t Topic
			err := r.Scan((*[16]byte)(&t.ID), &t.Name, &t.Partitions, &t.Scope, &t.Start, &t.Generation)
			topics = append(topics, t)
			return err
		},
	})
	return topics, err
}

// Create inserts the topic's row and a position for every partition at starts[n],
// in the caller's transaction: a position row that is missing later is never
// simply the start setting.
func (s *Store) Create(ctx context.Context, tx *pgtx.Tx, pipeline int64, t Topic, starts []int64) error {
	return tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`INSERT INTO @schema@.topics (pipeline, topic_id, name, partitions, scope, start, generation)
			VALUES ($1, $2, $3, $4, $5, $6, $7)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(t.ID), pgtx.Text(t.Name), pgtx.Int4(t.Partitions), pgtx.Text(string(t.Scope)),
			pgtx.Text(t.Start), pgtx.Bytea(t.Generation),
		},
	}, s.positions(pipeline, t, 0, starts))
}

// Grow adds the positions of partition numbers never seen; they begin at their
// first offset, whatever the start setting was. It is for topics whose scope does
// not rest on the partition count; the guard is in the statement.
func (s *Store) Grow(ctx context.Context, tx *pgtx.Tx, pipeline int64, t Topic, starts []int64) error {
	grown := false
	err := tx.Run(ctx, pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`UPDATE @schema@.topics SET partitions = $3 WHERE pipeline = $1 AND topic_id = $2 AND partitions = $4
			RETURNING true`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(t.ID), pgtx.Int4(t.Partitions + int32(len(starts))), pgtx.Int4(t.Partitions),
		},
		Row: func(r pgtx.Row) error { return r.Scan(&grown) },
	})
	if err != nil || !grown { // another member grew it first
		return err
	}
	return tx.Run(ctx, s.positions(pipeline, t, t.Partitions, starts))
}

// Unclaimed returns the pipeline's positions that nobody has ever taken over, where
// their partitions begin.
func (s *Store) Unclaimed(ctx context.Context, tx *pgtx.Tx, pipeline int64) (map[stream.Partition]int64, error) {
	starts := map[stream.Partition]int64{}
	err := tx.Run(ctx, pgtx.Statement{
		Step:   pgtx.StepBegin,
		SQL:    s.sql(`SELECT topic_id, partition, next_offset FROM @schema@.positions WHERE pipeline = $1 AND lane = '' AND epoch = 0`),
		Params: []pgtx.Param{pgtx.Int8(pipeline)},
		Row: func(r pgtx.Row) error {
			var p stream.Partition
			var next int64
			err := r.Scan((*[16]byte)(&p.Topic), &p.Number, &next)
			starts[p] = next
			return err
		},
	})
	return starts, err
}

func (s *Store) positions(pipeline int64, t Topic, first int32, starts []int64) pgtx.Statement {
	numbers := make([]int32, len(starts))
	for i := range numbers {
		numbers[i] = first + int32(i)
	}
	return pgtx.Statement{
		Step: pgtx.StepBegin,
		SQL: s.sql(`INSERT INTO @schema@.positions (pipeline, topic_id, partition, next_offset, generation)
			SELECT $1, $2, u.partition, u.next_offset, $5 FROM unnest($3, $4) AS u (partition, next_offset)`),
		Params: []pgtx.Param{
			pgtx.Int8(pipeline), pgtx.UUID(t.ID), pgtx.Int4s(numbers), pgtx.Int8s(starts), pgtx.Bytea(t.Generation),
		},
	}
}

// Server is what identifies the database a connection reaches.
type Server struct {
	SystemID int64
	Timeline string // eight hex digits; empty while in recovery
	Version  int    // server_version_num
}

// Identify asks the server who it is. A new timeline or another system identifier
// means the database may have gone back.
func Identify(ctx context.Context, conn *pgx.Conn) (Server, error) {
	var s Server
	// Names are qualified, since the session's search path is whatever it is, and the
	// statement is unnamed: behind a pooler the next one may reach another session.
	err := conn.QueryRow(ctx, `SELECT (SELECT system_identifier FROM pg_catalog.pg_control_system()),
		CASE WHEN pg_catalog.pg_is_in_recovery() THEN ''
		ELSE pg_catalog.left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8) END,
		pg_catalog.current_setting('server_version_num')::pg_catalog.int4`, pgx.QueryExecModeExec).
		Scan(&s.SystemID, &s.Timeline, &s.Version)
	if err != nil {
		return s, fmt.Errorf("identify the server: %w", err)
	}
	return s, nil
}
