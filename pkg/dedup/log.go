package dedup

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// Store holds the SQL of this package for one schema. It is immutable.
type Store struct{ schema string }

// New returns the store of the schema with this (unquoted) name.
func New(schema string) *Store { return &Store{pgx.Identifier{schema}.Sanitize()} }

func (s *Store) sql(text string) string { return strings.ReplaceAll(text, "@schema@", s.schema) }

// Create opens a log for each partition number, in the transaction that creates
// their positions.
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

// ErrDropView says that the rows do not prove what lies between the view's head
// and the log's: drop the view and load it again.
var ErrDropView = errors.New("the view's head is not in its log any more")

// ErrNoLog says that the partition has no open log: the database is not the one
// this claim was made on.
var ErrNoLog = errors.New("the partition has no open log")

// ErrSealed says that keys of the log lie in segments, which this version cannot
// look through: run the version that sealed it. It is an ErrDropView.
var ErrSealed = fmt.Errorf("%w: a newer version sealed it", ErrDropView)

// head is a log's row.
type head struct {
	log              int64
	generation       []byte
	head, sealed     int64
	headID, manifest stream.UUID
}

func (s *Store) head(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, p stream.Partition) (head, error) {
	var h head
	err := pgtx.Once(ctx, conn, set, pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT id, generation, head, head_id, manifest, sealed FROM @schema@.logs
			WHERE pipeline = $1 AND topic_id = $2 AND partition = $3 AND state = 'open'`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUID(p.Topic), pgtx.Int4(p.Number)},
		Row: func(r pgtx.Row) error {
			return r.Scan(&h.log, &h.generation, &h.head, (*[16]byte)(&h.headID), (*[16]byte)(&h.manifest), &h.sealed)
		},
	})
	if err == nil && h.log == 0 {
		err = fmt.Errorf("%w: %s", ErrNoLog, p)
	}
	return h, err
}

// Load reads the partition's log into a new view, between two readings of the
// log's row with the same manifest. The view may be behind the log when it
// returns: the head compare of the next commit says so.
func (s *Store) Load(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, p stream.Partition) (*View, error) {
	for {
		h, err := s.head(ctx, conn, set, pipeline, p)
		if err != nil {
			return nil, err
		}
		if h.sealed > 0 {
			return nil, fmt.Errorf("%w: runs up to %d are in segments", ErrSealed, h.sealed)
		}
		v := &View{Log: h.log, Generation: h.generation, Head: h.sealed, Manifest: h.manifest, keys: newSet(0)}
		if err = s.follow(ctx, conn, set, v, h, h.sealed+1); err != nil && !errors.Is(err, ErrDropView) {
			return nil, err
		}
		again, err2 := s.head(ctx, conn, set, pipeline, p)
		if err2 != nil {
			return nil, err2
		}
		switch {
		case again.manifest != h.manifest || again.log != h.log, // sealed meanwhile: what was read is torn
			err != nil && again.headID != h.headID: // or the database went back meanwhile
		case err != nil:
			return nil, err
		default:
			return v, nil
		}
	}
}

// CatchUp reads the runs between the view's head and the log's. ErrDropView means
// that they are not proven: the run at the view's head must still carry its
// head_id, what follows must be contiguous and have its fingerprints.
func (s *Store) CatchUp(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, pipeline int64, p stream.Partition, v *View) error {
	h, err := s.head(ctx, conn, set, pipeline, p)
	if err != nil {
		return err
	}
	switch {
	case h.log != v.Log, h.manifest != v.Manifest, h.sealed > v.Head, h.head < v.Head:
		return ErrDropView
	case h.headID == v.HeadID:
		return nil
	case h.head == v.Head && v.Head > 0: // a number proves nothing: it was given out twice
		return ErrDropView
	}
	return s.follow(ctx, conn, set, v, h, max(v.Head, 1))
}

// page bounds the bytes of one statement: runs a page × about 160 kB.
const page = 64

// follow reads runs from seq on, up to h, into v. The run at v.Head, if it is read,
// proves that v is of this log.
func (s *Store) follow(ctx context.Context, conn *pgx.Conn, set pgtx.Settings, v *View, h head, seq int64) error {
	if h.head == v.Head && v.Head == h.sealed { // nothing unsealed
		v.HeadID = h.headID
		return nil
	}
	proven := seq > v.Head
	for seq <= h.head {
		next := seq
		var bad error
		err := pgtx.Once(ctx, conn, set, pgtx.Statement{
			Step: pgtx.StepLog,
			SQL: s.sql(`SELECT seq, run_id, fingerprints FROM @schema@.runs
				WHERE log = $1 AND seq >= $2 AND seq < $3 ORDER BY seq`),
			Params: []pgtx.Param{pgtx.Int8(v.Log), pgtx.Int8(seq), pgtx.Int8(min(seq+page, h.head+1))},
			Row: func(r pgtx.Row) error {
				var n int64
				var id stream.UUID
				var run []byte
				if err := r.Scan(&n, (*[16]byte)(&id), &run); err != nil {
					return err
				}
				switch {
				case bad != nil:
				case n != next:
					bad = fmt.Errorf("%w: run %d is missing", ErrDropView, next)
				case n == v.Head:
					if id != v.HeadID {
						bad = fmt.Errorf("%w: run %d is another", ErrDropView, n)
					}
					proven = true
				case run == nil || !proven:
					bad = fmt.Errorf("%w: run %d has no fingerprints", ErrDropView, n)
				default:
					v.Learn(id, run)
				}
				next++
				return nil //nolint:nilerr // bad is told once the transaction is over
			},
		})
		if err == nil {
			err = bad
		}
		if err == nil && next == seq {
			err = fmt.Errorf("%w: run %d is missing", ErrDropView, seq)
		}
		if err != nil {
			return err
		}
		seq = next
	}
	if v.HeadID != h.headID {
		return fmt.Errorf("%w: run %d is not its head", ErrDropView, h.head)
	}
	return nil
}

// Heads returns the head_id and manifest of the open logs of these partitions.
func (s *Store) Heads(pipeline int64, parts []stream.Partition, row func(p stream.Partition, headID, manifest stream.UUID)) pgtx.Statement {
	topics, numbers := make([]stream.UUID, len(parts)), make([]int32, len(parts))
	for i, p := range parts {
		topics[i], numbers[i] = p.Topic, p.Number
	}
	return pgtx.Statement{
		Step: pgtx.StepLog,
		SQL: s.sql(`SELECT l.topic_id, l.partition, l.head_id, l.manifest FROM @schema@.logs l
			JOIN unnest($2, $3) AS u (topic_id, partition) ON l.topic_id = u.topic_id AND l.partition = u.partition
			WHERE l.pipeline = $1 AND l.state = 'open'`),
		Params: []pgtx.Param{pgtx.Int8(pipeline), pgtx.UUIDs(topics), pgtx.Int4s(numbers)},
		Row: func(r pgtx.Row) error {
			var p stream.Partition
			var id, manifest stream.UUID
			err := r.Scan((*[16]byte)(&p.Topic), &p.Number, (*[16]byte)(&id), (*[16]byte)(&manifest))
			row(p, id, manifest)
			return err
		},
	}
}
