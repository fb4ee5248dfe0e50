package sink_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

const timeout = 20 * time.Second

// unnamed opens a session as a committer's is opened.
func unnamed(tb testing.TB, db *pgtest.DB) *pgx.Conn {
	tb.Helper()
	cfg, err := pgx.ParseConfig(db.RuntimeDSN)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	conn, err := pgx.ConnectConfig(tb.Context(), cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close(context.WithoutCancel(tb.Context())) })
	return conn
}

// call runs a handler over n records in a transaction and commits.
func call(ctx context.Context, conn *pgx.Conn, n int, f sink.Func) error {
	rows := make([][]stream.Value, n)
	for i := range rows {
		rows[i] = []stream.Value{}
	}
	b := batchOf(rows...)
	h := sink.NewHandler(f, timeout)
	h.Encode(b, 0)
	return apply(ctx, conn, h, b, all(b, nil))
}

func TestHandler(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := unnamed(t, db)
	points := db.Table(t, "points", "who text, n int, at timestamptz DEFAULT now()")
	err := call(t.Context(), conn, 3, func(ctx context.Context, tx sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		if tag, err := tx.Exec(ctx, "INSERT INTO "+points+" (who, n) VALUES ('none', 0)"); err != nil || tag.RowsAffected() != 1 {
			return nil, fmt.Errorf("%s: %w", tag, err)
		}
		if _, err := tx.Exec(ctx, "INSERT INTO "+points+" (who, n) VALUES (@who, @n)", pgx.NamedArgs{"who": "named", "n": len(records)}); err != nil {
			return nil, err
		}
		var n int
		if err := tx.QueryRow(ctx, "SELECT n FROM "+points+" WHERE who = $1", "named").Scan(&n); err != nil || n != 3 {
			return nil, fmt.Errorf("named is %d: %w", n, err)
		}
		if err := tx.QueryRow(ctx, "SELECT n FROM "+points+" WHERE who = $1", "nobody").Scan(&n); !errors.Is(err, pgx.ErrNoRows) {
			return nil, fmt.Errorf("nobody: %w", err)
		}
		copied, err := tx.CopyFrom(ctx, pgx.Identifier{db.User, "points"}, []string{"who", "n"}, pgx.CopyFromRows([][]any{{"copy", 1}, {"copy", 2}}))
		if err != nil || copied != 2 {
			return nil, fmt.Errorf("copied %d: %w", copied, err)
		}
		queue := &pgx.Batch{}
		queue.Queue("INSERT INTO "+points+" (who, n) VALUES (@who, 4)", pgx.NamedArgs{"who": "batch"})
		queue.Queue("SELECT sum(n) FROM " + points).QueryRow(func(row pgx.Row) error { return row.Scan(&n) })
		if err := tx.SendBatch(ctx, queue).Close(); err != nil || n != 10 {
			return nil, fmt.Errorf("sum %d: %w", n, err)
		}
		rows, err := tx.Query(ctx, "SELECT who FROM "+points+" ORDER BY n", pgx.QueryExecModeCacheStatement)
		if err != nil {
			return nil, err
		}
		if rows.Conn() != nil {
			return nil, errors.New("rows lead to the connection")
		}
		who, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if !slices.Equal(who, []string{"none", "copy", "copy", "named", "batch"}) {
			return nil, fmt.Errorf("%q: %w", who, err)
		}
		return nil, err
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := texts(t, db, "SELECT sum(n)::text FROM "+points); got[0] != "10" {
		t.Errorf("sum %s", got[0])
	}
	// jackc/pgx#344: a named statement does not survive a transaction pooler.
	var prepared int
	if err := conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_prepared_statements").Scan(&prepared); err != nil || prepared != 0 {
		t.Errorf("%d prepared statements: %v", prepared, err)
	}
}

// TestHandlersErrors: what a handler answers, and what it does not, becomes the
// error to judge by.
func TestHandlersErrors(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := unnamed(t, db)
	tab := db.Table(t, "h", "k int PRIMARY KEY")
	own := errors.New("own word")
	fail := func(ctx context.Context, tx sink.Tx) error {
		_, err := tx.Exec(ctx, "SELECT 1/0")
		return err
	}
	type function = func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error)
	tests := map[string]struct {
		f    function
		is   error
		code string
		own  bool // a *HandlerError
	}{
		"own error": {f: func(context.Context, sink.Tx) ([]sink.Rejection, error) { return nil, own }, is: own, own: true},
		"panic":     {f: func(context.Context, sink.Tx) ([]sink.Rejection, error) { panic(own) }, is: own, own: true},
		"database's error": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			return nil, fmt.Errorf("wrapped: %w", fail(ctx, tx))
		}, code: "22012"},
		"swallowed": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) { _ = fail(ctx, tx); return nil, nil }, code: "22012"},
		"hidden": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_ = fail(ctx, tx)
			_, err := tx.Exec(ctx, "SELECT 1")
			return nil, fmt.Errorf("%w: %v", own, err) //nolint:errorlint // on purpose
		}, is: own, code: "22012"},
		"swallowed in a batch": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.Queue("SELECT 1/0")
			_ = tx.SendBatch(ctx, q).Close()
			return nil, nil
		}, code: "22012"},
		"swallowed in a callback": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.Queue("SELECT 1/0").QueryRow(func(row pgx.Row) error { _ = row.Scan(new(int)); return nil })
			_ = tx.SendBatch(ctx, q).Close()
			return nil, nil
		}, code: "22012"},
		"swallowed in a row": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_ = tx.QueryRow(ctx, "SELECT 1/x FROM generate_series(1, 0, -1) x").Scan(new(int))
			return nil, nil
		}, code: "22012"},
		"swallowed in a copy": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, _ = tx.CopyFrom(ctx, pgx.Identifier{db.User, "h"}, []string{"k"}, pgx.CopyFromRows([][]any{{1}, {1}}))
			return nil, nil
		}, code: "23505"},
		"source of a copy fails": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{db.User, "h"}, []string{"k"}, pgx.CopyFromFunc(func() ([]any, error) { return nil, own }))
			return nil, err
		}, is: own, own: true},
		"source of a copy panics": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{db.User, "h"}, []string{"k"}, pgx.CopyFromFunc(func() ([]any, error) { panic(own) }))
			return nil, err
		}, is: own, own: true},
		"control": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "/* */ coMMit")
			return nil, err
		}, is: sink.ErrTransactionControl},
		"control swallowed": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_ = tx.QueryRow(ctx, "SELECT 1; ROLLBACK").Scan(new(int))
			return nil, nil
		}, is: sink.ErrTransactionControl},
		"control by rewriting": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "SELECT 1", rewriter("COMMIT"))
			return nil, err
		}, is: sink.ErrTransactionControl},
		"control in a batch": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.Queue("SELECT 1")
			q.Queue("SELECT 1", rewriter("COMMIT"))
			return nil, tx.SendBatch(ctx, q).Close()
		}, is: sink.ErrTransactionControl},
		"control by a batch that begins": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.BeginTx(pgx.TxOptions{})
			br := tx.SendBatch(ctx, q)
			if br.Tx() != nil {
				return nil, errors.New("a Tx")
			}
			return nil, br.Close()
		}, is: sink.ErrTransactionControl},
		"control in a block": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "DO $$ BEGIN COMMIT; END $$")
			return nil, err
		}, code: "2D000"}, // the server's own guard
		"several statements": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "SELECT 1; SELECT 2")
			return nil, err
		}, code: "42601"},
		"simple protocol": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "SELECT 1; SELECT 2", pgx.QueryExecModeSimpleProtocol)
			return nil, err
		}, code: "42601"},
		"rows left open": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			rows.Next()
			return nil, err
		}, is: sink.ErrRowsOpen},
		"row not scanned": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			tx.QueryRow(ctx, "SELECT 1")
			return nil, nil
		}, is: sink.ErrRowsOpen},
		"batch left open": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.Queue("SELECT 1")
			q.Queue("SELECT 2")
			_, err := tx.SendBatch(ctx, q).Exec()
			return nil, err
		}, is: sink.ErrRowsOpen},
		"statement between rows": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			rows, err := tx.Query(ctx, "SELECT generate_series(1, 100000)")
			if err != nil {
				return nil, err
			}
			defer rows.Close()
			rows.Next()
			_, err = tx.Exec(ctx, "SELECT 1")
			return nil, err
		}, is: sink.ErrRowsOpen},
		"rows left open behind an error": {f: func(ctx context.Context, tx sink.Tx) ([]sink.Rejection, error) {
			_, _ = tx.Query(ctx, "SELECT generate_series(1, 100000)") //nolint:sqlclosecheck // on purpose
			return nil, own
		}, is: own, own: true},
		"rejects a stranger": {f: func(context.Context, sink.Tx) ([]sink.Rejection, error) {
			return []sink.Rejection{{Offset: 99}}, nil
		}, is: sink.ErrRejection},
	}
	for name, tt := range tests {
		err := call(t.Context(), conn, 1, func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			return tt.f(ctx, tx)
		})
		if strings.Contains(fmt.Sprint(err), "%!") {
			t.Errorf("%s: %v", name, err)
		}
		var step *pgtx.StepError
		if !errors.As(err, &step) || step.Step != pgtx.StepEffect {
			t.Errorf("%s: %v is no error of the effect", name, err)
		}
		if tt.is != nil && !errors.Is(err, tt.is) || pgtx.Code(err) != tt.code {
			t.Errorf("%s: %v, want %v and SQLSTATE %q", name, err, tt.is, tt.code)
		}
		var handler *sink.HandlerError
		if errors.As(err, &handler) != tt.own {
			t.Errorf("%s: %v: HandlerError %v, want %v", name, err, !tt.own, tt.own)
		}
		if strings.Contains(name, "panic") && (handler == nil || !strings.Contains(string(handler.Stack), "handler_test.go")) {
			t.Errorf("%s: no stack of the panic", name)
		}
		if conn.IsClosed() {
			t.Fatalf("%s: the session is lost", name)
		}
		// The session works on, whatever was left behind.
		if _, err := conn.Exec(t.Context(), "SELECT FROM "+tab); err != nil {
			t.Errorf("%s: afterwards: %v", name, err)
		}
	}
}

type rewriter string

func (r rewriter) RewriteQuery(context.Context, *pgx.Conn, string, []any) (string, []any, error) {
	return string(r), nil, nil
}

// A session whose batches and COPY would prepare named statements is refused.
func TestExecMode(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t) // pgx's default
	for name, f := range map[string]sink.Func{
		"batch": func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			q := &pgx.Batch{}
			q.Queue("SELECT 1")
			return nil, tx.SendBatch(ctx, q).Close()
		},
		"copy": func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"x"}, []string{"y"}, pgx.CopyFromRows(nil))
			return nil, err
		},
	} {
		if err := call(t.Context(), conn, 1, f); !errors.Is(err, sink.ErrExecMode) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRejections: by coordinates, so that a handler may sort what it was given;
// the first word about a record counts.
func TestRejections(t *testing.T) {
	t.Parallel()
	conn := unnamed(t, pgtest.New(t))
	b := &stream.Batch{}
	p, q := stream.Partition{Topic: stream.UUID{1}, Number: 1}, stream.Partition{Topic: stream.UUID{1}, Number: 2}
	b.Records = []stream.Record{{Partition: p, Offset: 5}, {Partition: p, Offset: 6}, {Partition: q, Offset: 5}, {Partition: q, Offset: 7}}
	var got []int64
	h := sink.NewHandler(func(_ context.Context, _ sink.Tx, records []stream.Record) ([]sink.Rejection, error) {
		for _, r := range records {
			got = append(got, r.Offset)
		}
		slices.Reverse(records)
		return []sink.Rejection{sink.Reject(records[0], "no points"), sink.Reject(records[2], "first"), sink.Reject(records[2], "second")}, nil
	}, timeout)
	if faults := h.Encode(b, 0); len(faults) > 0 || len(b.Ends) != 4 {
		t.Errorf("Encode: %v, %d ends", faults, len(b.Ends))
	}
	tx, err := pgtx.Begin(t.Context(), conn, pgtx.DefaultSettings)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	faults, err := h.Apply(t.Context(), tx, b, []int{0, 2, 3})
	if err != nil {
		t.Fatal(err)
	}
	want := []stream.Fault{{Index: 3, Stage: stream.StageEffect, Reason: "rejected", Detail: "no points"},
		{Index: 0, Stage: stream.StageEffect, Reason: "rejected", Detail: "first"}}
	if diff := cmp.Diff(want, faults); diff != "" {
		t.Error(diff)
	}
	if !slices.Equal(got, []int64{5, 5, 7}) {
		t.Errorf("it was given %v", got)
	}
	if b.Records[0].Offset != 5 || b.Records[3].Offset != 7 {
		t.Error("its sorting moved the batch")
	}
	if faults, err := h.Apply(t.Context(), tx, b, nil); faults != nil || err != nil || len(got) != 3 {
		t.Errorf("nothing to apply: %v, %v, %v", faults, err, got)
	}
}

// TestTxOutlived: a handler that keeps its Tx, even for a goroutine, cannot reach
// a later transaction with it.
func TestTxOutlived(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := unnamed(t, db)
	var kept sink.Tx
	keep := func(_ context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
		kept = tx
		return nil, nil
	}
	if err := call(t.Context(), conn, 1, keep); err != nil {
		t.Fatal(err)
	}
	tx, err := pgtx.Begin(t.Context(), conn, pgtx.DefaultSettings)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	ctx := t.Context()
	_, execErr := kept.Exec(ctx, "SELECT 1")
	rows, queryErr := kept.Query(ctx, "SELECT 1")
	rowErr := kept.QueryRow(ctx, "SELECT 1").Scan(new(int))
	_, copyErr := kept.CopyFrom(ctx, pgx.Identifier{"x"}, nil, pgx.CopyFromRows(nil))
	br := kept.SendBatch(ctx, &pgx.Batch{})
	_, batchErr := br.Exec()
	batchRows, batchQueryErr := br.Query()
	batchRows.Close()
	for i, err := range []error{execErr, queryErr, rows.Err(), rows.Scan(), rowErr, copyErr, br.Close(), batchErr, batchQueryErr, br.QueryRow().Scan()} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("%d: %v", i, err)
		}
	}
}

// TestHandlerTimeout: a handler that waits in the database, or sleeps by its
// context, ends in its time.
func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, f := range map[string]sink.Func{
		"in the database": func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
			return nil, err
		},
		"swallowed": func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			_, _ = tx.Exec(ctx, "SELECT pg_sleep(60)")
			return nil, nil
		},
		"by its context": func(ctx context.Context, _ sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		},
	} {
		conn := unnamed(t, db)
		b := batchOf([]stream.Value{})
		h := sink.NewHandler(f, 100*time.Millisecond)
		h.Encode(b, 0)
		if err := apply(t.Context(), conn, h, b, []int{0}); !errors.Is(err, sink.ErrTimeout) {
			t.Errorf("%s: %v", name, err)
		}
	}

	// The caller's own end is not the handler's fault.
	ctx, cancel := context.WithCancel(t.Context())
	var calls atomic.Int32
	err := call(ctx, unnamed(t, db), 1, func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
		calls.Add(1)
		cancel()
		_, err := tx.Exec(ctx, "SELECT pg_sleep(60)")
		return nil, err
	})
	if !errors.Is(err, context.Canceled) || errors.Is(err, sink.ErrTimeout) || errors.As(err, new(*sink.HandlerError)) || calls.Load() != 1 {
		t.Errorf("cancelled: %v", err)
	}
}

// TestHandlerLosesSession: a session that ends under a handler is never its fault.
func TestHandlerLosesSession(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, swallow := range map[string]bool{"told": false, "swallowed": true} {
		conn := unnamed(t, db)
		err := call(t.Context(), conn, 1, func(ctx context.Context, tx sink.Tx, _ []stream.Record) ([]sink.Rejection, error) {
			_, err := tx.Exec(ctx, "SELECT pg_terminate_backend(pg_backend_pid())")
			if swallow {
				return nil, errors.New("cannot work")
			}
			return nil, err
		})
		if err == nil || errors.As(err, new(*sink.HandlerError)) || pgtx.Answered(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
