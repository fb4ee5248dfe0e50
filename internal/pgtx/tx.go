// Package pgtx is where transactions begin and end. A transaction is a few round
// trips of pipelined statements; the first carries BEGIN and the settings, the
// last carries COMMIT. A guard is a statement that raises: the server skips
// everything behind it in the same pipeline, COMMIT included.
package pgtx

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

const begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

// settle bounds what runs after the caller's context is gone: ROLLBACK and the
// release of a connection.
const settle = 2 * time.Second

// Settings are spelled out in every transaction; a pooler may hand us any session.
type Settings struct {
	Lock      time.Duration // lock_timeout
	Statement time.Duration // statement_timeout
	Idle      time.Duration // idle_in_transaction_session_timeout
}

// DefaultSettings bound every wait of a transaction.
var DefaultSettings = Settings{Lock: 30 * time.Second, Statement: 60 * time.Second, Idle: 5 * time.Second}

// statement sets everything for this transaction only: no schema is searched but
// pg_catalog, the time zone is UTC, jit never costs a compile, and a cached plan
// stays generic.
func (s Settings) statement() Statement {
	ms := func(d time.Duration) Param { return Text(strconv.FormatInt(d.Milliseconds(), 10)) }
	return Statement{Step: StepBegin, SQL: `SELECT pg_catalog.set_config('search_path', '', true), pg_catalog.set_config('lock_timeout', $1, true),
		pg_catalog.set_config('statement_timeout', $2, true), pg_catalog.set_config('idle_in_transaction_session_timeout', $3, true),
		pg_catalog.set_config('TimeZone', 'UTC', true), pg_catalog.set_config('jit', 'off', true),
		pg_catalog.set_config('plan_cache_mode', 'force_generic_plan', true)`,
		Params: []Param{ms(s.Lock), ms(s.Statement), ms(s.Idle)}}
}

// LockTimeout bounds each wait for a lock in the rest of the transaction.
func LockTimeout(step Step, d time.Duration) Statement {
	return Statement{
		Step: step, SQL: `SELECT pg_catalog.set_config('lock_timeout', $1, true)`,
		Params: []Param{Text(strconv.FormatInt(d.Milliseconds(), 10))},
	}
}

// Tx is an open transaction on one connection. It is not safe for concurrent use.
type Tx struct {
	conn *pgx.Conn
}

// Begin opens a transaction and runs first in the same round trip. On an error
// the transaction is already rolled back.
func Begin(ctx context.Context, conn *pgx.Conn, s Settings, first ...Statement) (*Tx, error) {
	tx := &Tx{conn: conn}
	stmts := append([]Statement{{Step: StepBegin, SQL: begin}, s.statement()}, first...)
	if _, err := tx.pipeline(ctx, stmts); err != nil {
		tx.Rollback(ctx)
		return nil, err
	}
	return tx, nil
}

// Do runs f in a transaction of its own, behind first, and commits if it returns nil.
// Its error is f's, or one of Begin or Commit; then nothing was done, but for
// ErrCommitUnknown.
func Do(ctx context.Context, conn *pgx.Conn, s Settings, f func(*Tx) error, first ...Statement) error {
	tx, err := Begin(ctx, conn, s, first...)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		tx.Rollback(ctx)
		return err
	}
	return tx.Commit(ctx)
}

// Run sends the statements in one round trip. The first error is returned with
// its step; what follows it did not run.
func (tx *Tx) Run(ctx context.Context, stmts ...Statement) error {
	_, err := tx.pipeline(ctx, stmts)
	return err
}

// Commit runs last and COMMIT in one round trip. Nil means the server answered
// COMMIT. A *StepError with severity ERROR means nothing was committed;
// ErrCommitUnknown means nobody knows. After any error the transaction is over.
func (tx *Tx) Commit(ctx context.Context, last ...Statement) error {
	stmts := append(slices.Clip(last), Statement{Step: StepCommit, SQL: "COMMIT"})
	tag, err := tx.pipeline(ctx, stmts)
	switch {
	case err == nil && tag.String() == "COMMIT":
		return nil
	case err == nil:
		return &StepError{StepCommit, fmt.Errorf("%w: %s", ErrNotCommitted, tag)}
	case Answered(err), errors.Is(err, ErrEncode):
		tx.Rollback(ctx)
		return err
	default:
		tx.drop(ctx)
		return &StepError{StepCommit, fmt.Errorf("%w: %w", ErrCommitUnknown, err)}
	}
}

// Rollback ends the transaction. A session that does not answer is closed.
func (tx *Tx) Rollback(ctx context.Context) {
	pc := tx.conn.PgConn()
	if pc.IsClosed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	if _, err := tx.pipeline(ctx, []Statement{{Step: StepBegin, SQL: "ROLLBACK"}}); err != nil || pc.TxStatus() != 'I' {
		tx.drop(ctx)
	}
}

// drop closes the session: nobody uses it again.
func (tx *Tx) drop(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settle)
	defer cancel()
	_ = tx.conn.Close(ctx) // the session is lost either way
}

// Copy streams r, which is complete in memory, into a COPY FROM STDIN statement.
func (tx *Tx) Copy(ctx context.Context, sql string, r io.Reader) (int64, error) {
	tag, err := tx.conn.PgConn().CopyFrom(ctx, r, sql)
	if err != nil {
		return 0, &StepError{StepEffect, err}
	}
	return tag.RowsAffected(), nil
}

// Conn is the connection the transaction is open on, for the sink's restricted
// handle alone.
func (tx *Tx) Conn() *pgx.Conn { return tx.conn }

// Once runs the statements in a transaction of their own, in one round trip.
func Once(ctx context.Context, conn *pgx.Conn, s Settings, stmts ...Statement) error {
	tx := &Tx{conn: conn}
	return tx.Commit(ctx, append([]Statement{{Step: StepBegin, SQL: begin}, s.statement()}, stmts...)...)
}

// pipeline sends all statements and one Sync, reads all answers, and returns the
// tag of the last. The error of the first that failed comes as *StepError; an
// error of encoding comes before anything is sent.
func (tx *Tx) pipeline(ctx context.Context, stmts []Statement) (pgconn.CommandTag, error) {
	var tag pgconn.CommandTag
	m := tx.conn.TypeMap()
	wire := make([]encoded, len(stmts))
	for i := range stmts {
		var err error
		if wire[i], err = encode(m, stmts[i].Params); err != nil {
			return tag, &StepError{stmts[i].Step, err}
		}
	}
	p := tx.conn.PgConn().StartPipeline(ctx)
	for i := range stmts {
		p.SendQueryParams(stmts[i].SQL, wire[i].values, wire[i].oids, wire[i].formats, binaryResults)
	}
	if err := p.Sync(); err != nil {
		_ = p.Close() // the first error is the one to tell
		return tag, &StepError{stmts[len(stmts)-1].Step, err}
	}
	for i := range stmts {
		var err error
		if tag, err = answer(p, m, stmts[i].Row); err != nil {
			_ = p.Close() // drains the answers behind the error
			return tag, &StepError{stmts[i].Step, err}
		}
	}
	if err := p.Close(); err != nil {
		return tag, &StepError{stmts[len(stmts)-1].Step, err}
	}
	return tag, nil
}

var binaryResults = []int16{pgtype.BinaryFormatCode}

// ErrEncode says that a parameter does not fit its type: our bug, nothing was sent.
var ErrEncode = errors.New("parameter does not fit its type")

type encoded struct {
	values  [][]byte
	oids    []uint32
	formats []int16
}

func encode(m *pgtype.Map, params []Param) (encoded, error) {
	e := encoded{make([][]byte, len(params)), make([]uint32, len(params)), make([]int16, len(params))}
	for i, p := range params {
		e.oids[i], e.formats[i] = p.OID, pgtype.BinaryFormatCode
		if raw, ok := p.Value.(raw); ok {
			e.values[i] = raw
			continue
		}
		var err error
		// Into a buffer that is not nil: nothing appended to nil is null, not the empty text.
		if e.values[i], err = m.Encode(p.OID, pgtype.BinaryFormatCode, p.Value, []byte{}); err != nil {
			return encoded{}, fmt.Errorf("%w: $%d: %w", ErrEncode, i+1, err)
		}
	}
	return e, nil
}

var errNoAnswer = errors.New("the session ended before it answered")

func answer(p *pgconn.Pipeline, m *pgtype.Map, row func(Row) error) (pgconn.CommandTag, error) {
	res, err := p.GetResults()
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	rr, ok := res.(*pgconn.ResultReader)
	if !ok {
		return pgconn.CommandTag{}, errNoAnswer
	}
	var scanErr error
	for rr.NextRow() {
		if row != nil && scanErr == nil {
			scanErr = row(&wireRow{m, rr})
		}
	}
	tag, err := rr.Close()
	if err == nil {
		err = scanErr
	}
	return tag, err
}

type wireRow struct {
	m  *pgtype.Map
	rr *pgconn.ResultReader
}

func (r *wireRow) Scan(dest ...any) error {
	return pgx.ScanRow(r.m, r.rr.FieldDescriptions(), r.rr.Values(), dest...)
}
