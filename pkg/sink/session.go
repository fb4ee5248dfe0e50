package sink

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"effectonce/internal/pgtx"
)

// session is what stands behind a Tx during one call of a handler.
type session struct {
	conn *pgx.Conn
	done atomic.Bool // the handler has returned
	open func()      // closes the rows or the batch handed out last
	set  error       // first fault of the handler's author
	sql  error       // first statement that failed
}

func newSession(conn *pgx.Conn) *session { return &session{conn: conn, open: func() {}} }

// usable refuses a Tx that outlived its call, and a statement in the middle of
// another's answer.
func (s *session) usable() error {
	if s.done.Load() {
		return fmt.Errorf("handler has returned: %w", pgx.ErrTxClosed)
	}
	if s.conn.PgConn().IsBusy() {
		return s.fault(fmt.Errorf("%w while it ran the next statement", ErrRowsOpen))
	}
	return nil
}

// fault remembers a fault of the author, which the handler may swallow.
func (s *session) fault(err error) error {
	if s.set == nil {
		s.set = err
	}
	return err
}

// note remembers a statement that failed, which the handler may swallow.
func (s *session) note(err error) error {
	if s.sql == nil {
		s.sql = err
	}
	return err
}

// query sends one statement. The rows are never nil.
func (s *session) query(ctx context.Context, sql string, args []any) (pgx.Rows, error) {
	if err := s.usable(); err != nil {
		return failedRows{err: err}, err
	}
	options, args := splitOptions(args)
	sql, args, err := rewrite(ctx, sql, args)
	if err != nil {
		return failedRows{err: err}, err
	}
	if err = s.check(sql); err != nil {
		return failedRows{err: err}, err
	}
	inner, err := s.conn.Query(ctx, sql, append(options, args...)...)
	if err != nil {
		return failedRows{err: err}, s.note(err)
	}
	s.open = inner.Close
	return &rows{inner, s}, nil
}

// check refuses transaction control.
func (s *session) check(sql string) error {
	err := forbidControl(sql, s.conn.PgConn().ParameterStatus("standard_conforming_strings") == "off")
	if errors.Is(err, ErrTransactionControl) {
		return s.fault(err)
	}
	return err
}

// splitOptions takes pgx's options off the front of a query's arguments. The exec
// mode is ours: unnamed statements in the extended protocol.
func splitOptions(args []any) (options, rest []any) {
	options = []any{pgx.QueryExecModeCacheDescribe}
	for i, arg := range args {
		switch arg.(type) {
		case pgx.QueryResultFormats, pgx.QueryResultFormatsByOID:
			options = append(options, arg)
		case pgx.QueryExecMode:
		default:
			return options, args[i:]
		}
	}
	return options, nil
}

// rewrite runs a rewriter (named arguments) here, before the text is checked. It
// gets no connection.
func rewrite(ctx context.Context, sql string, args []any) (string, []any, error) {
	for len(args) > 0 {
		rewriter, ok := args[0].(pgx.QueryRewriter)
		if !ok {
			break
		}
		var err error
		if sql, args, err = rewriter.RewriteQuery(ctx, nil, sql, args[1:]); err != nil {
			return "", nil, fmt.Errorf("rewrite query: %w", err)
		}
	}
	return sql, args, nil
}

func (s *session) sendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if err := s.prepareBatch(ctx, b); err != nil {
		return failedBatch{err}
	}
	inner := s.conn.SendBatch(ctx, b)
	s.open = func() { _ = s.note(inner.Close()) }
	return &batch{inner, s}
}

func (s *session) prepareBatch(ctx context.Context, b *pgx.Batch) error {
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.unnamed(); err != nil {
		return err
	}
	for _, q := range b.QueuedQueries {
		var err error
		if q.SQL, q.Arguments, err = rewrite(ctx, q.SQL, q.Arguments); err != nil {
			return err
		}
		if err = s.check(q.SQL); err != nil {
			return err
		}
	}
	return nil
}

// unnamed refuses a connection on which batches and COPY would prepare named
// statements: there the mode cannot be chosen by call.
func (s *session) unnamed() error {
	switch mode := s.conn.Config().DefaultQueryExecMode; mode {
	case pgx.QueryExecModeCacheDescribe, pgx.QueryExecModeDescribeExec, pgx.QueryExecModeExec:
		return nil
	default:
		return s.fault(fmt.Errorf("%w: it is %s, cache_describe is right", ErrExecMode, mode))
	}
}

func (s *session) copyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if err := s.usable(); err != nil {
		return 0, err
	}
	if err := s.unnamed(); err != nil {
		return 0, err
	}
	g := &guardedSource{src: src}
	n, err := s.conn.CopyFrom(ctx, table, columns, g)
	if source := g.Err(); source != nil {
		err = source // the server's 57014 only repeats it
	}
	return n, s.note(err)
}

// finish ends the call: it closes what the handler left open, looks whether the
// transaction still stands, and returns the error to judge by.
func (s *session) finish(ctx context.Context, err error) error {
	s.done.Store(true)
	pc := s.conn.PgConn()
	if pc.IsBusy() && err == nil {
		err = s.fault(ErrRowsOpen)
	}
	s.open()
	switch {
	case s.set != nil:
		return s.set
	case pc.IsClosed(), err != nil && ctx.Err() != nil && pgtx.Code(err) == "":
		return s.interrupted(ctx, err)
	case pc.TxStatus() == 'I':
		return fmt.Errorf("%w: it has ended the transaction", ErrTransactionControl)
	case pc.TxStatus() == 'E' && err == nil:
		return s.unseen()
	case pc.TxStatus() == 'E' && pgtx.Code(err) == "" && pgtx.Code(s.sql) != "":
		return fmt.Errorf("%w, after %w", err, s.sql)
	case err == nil, pgtx.Code(err) != "", errors.As(err, new(*HandlerError)):
		return err
	}
	return &HandlerError{Err: err}
}

// unseen is the error of a call that went on after a failed statement.
func (s *session) unseen() error {
	if s.sql == nil { // swallowed in a callback of a batch
		return &HandlerError{Err: errors.New("a failed statement was not told")}
	}
	return fmt.Errorf("handler went on after a failed statement: %w", s.sql)
}

// interrupted is the error of a call that lost its session or its time.
func (s *session) interrupted(ctx context.Context, err error) error {
	parts := []error{context.Cause(ctx), err}
	if s.sql != nil && !errors.Is(err, s.sql) {
		parts = append(parts, s.sql)
	}
	if err = errors.Join(parts...); err == nil {
		return errors.New("the session ended")
	}
	return err
}

// rows are rows without a way to the connection.
type rows struct {
	pgx.Rows
	s *session
}

func (*rows) Conn() *pgx.Conn { return nil }

func (r *rows) Next() bool {
	if r.Rows.Next() {
		return true
	}
	_ = r.s.note(r.Err())
	return false
}

func (r *rows) Close() {
	r.Rows.Close()
	_ = r.s.note(r.Err())
}

// row is the answer to QueryRow.
type row struct {
	rows pgx.Rows
}

func (r row) Scan(dest ...any) error {
	defer r.rows.Close()
	if !r.rows.Next() {
		if err := r.rows.Err(); err != nil {
			return err
		}
		return pgx.ErrNoRows
	}
	if err := r.rows.Scan(dest...); err != nil {
		return err
	}
	r.rows.Close()
	return r.rows.Err()
}

// batch is the answer to SendBatch.
type batch struct {
	pgx.BatchResults
	s *session
}

func (*batch) Tx() pgx.Tx { return nil }

func (b *batch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.s.note(err)
}

func (b *batch) Query() (pgx.Rows, error) {
	inner, err := b.BatchResults.Query()
	return &rows{inner, b.s}, b.s.note(err)
}

func (b *batch) QueryRow() pgx.Row {
	inner, _ := b.Query() // the error is the rows' too
	return row{inner}
}

func (b *batch) Close() error { return b.s.note(b.BatchResults.Close()) }
