package sink

import (
	"fmt"
	"runtime/debug"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// failedRows are the rows of a statement that was not sent, or failed at once.
type failedRows struct{ err error }

func (failedRows) Close()                                       {}
func (r failedRows) Err() error                                 { return r.err }
func (failedRows) CommandTag() pgconn.CommandTag                { return pgconn.CommandTag{} }
func (failedRows) FieldDescriptions() []pgconn.FieldDescription { return nil }
func (failedRows) Next() bool                                   { return false }
func (r failedRows) Scan(...any) error                          { return r.err }
func (r failedRows) Values() ([]any, error)                     { return nil, r.err }
func (failedRows) RawValues() [][]byte                          { return nil }
func (failedRows) Conn() *pgx.Conn                              { return nil }
func (failedRows) TypeMap() *pgtype.Map                         { return nil }

// failedBatch is the answer to a batch that was not sent.
type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return failedRows(b), b.err }
func (b failedBatch) QueryRow() pgx.Row                { return row{failedRows(b)} }
func (b failedBatch) Close() error                     { return b.err }
func (failedBatch) Tx() pgx.Tx                         { return nil }

// guardedSource keeps a panic of the handler's rows from ending the process: pgx
// calls them on a goroutine of its own.
type guardedSource struct {
	src pgx.CopyFromSource
	err error
}

func (g *guardedSource) Next() (more bool) {
	defer func() {
		if p := recover(); p != nil {
			g.err, more = panicked(p), false
		}
	}()
	return g.err == nil && g.src.Next()
}

func (g *guardedSource) Values() (values []any, err error) {
	defer func() {
		if p := recover(); p != nil {
			g.err = panicked(p)
			values, err = nil, g.err
		}
	}()
	return g.src.Values()
}

// Err is the source's error, or its panic.
func (g *guardedSource) Err() (err error) {
	defer func() {
		if p := recover(); p != nil {
			g.err = panicked(p)
			err = g.err
		}
	}()
	if g.err == nil {
		g.err = g.src.Err()
	}
	return g.err
}

func panicked(p any) error {
	cause, ok := p.(error)
	if !ok {
		cause = fmt.Errorf("%v", p)
	}
	return &HandlerError{fmt.Errorf("panic: %w", cause), debug.Stack()}
}
