package pgtx_test

import (
	"context"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"

	"effectonce/internal/pgproxytest"
	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patient bounds nothing that a test waits for: machines stall.
var patient = pgtx.Settings{Lock: time.Minute, Statement: time.Minute, Idle: time.Minute} //nolint:gochecknoglobals // a constant

// world is a table in a private schema, a session of the runtime role, and what a
// second session sees.
type world struct {
	*pgtest.DB
	t     *testing.T
	conn  *pgx.Conn
	table string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t), t: t}
	w.table = w.Table(t, "effects", "id bigint PRIMARY KEY, body bytea")
	w.conn = w.Conn(t)
	return w
}

// proxied has its session behind a proxy that can cut it.
func proxied(t *testing.T) (*world, *pgproxytest.Proxy) {
	t.Helper()
	w := newWorld(t)
	cfg, err := pgx.ParseConfig(w.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	proxy := pgproxytest.Start(t, net.JoinHostPort(cfg.Host, strconv.Itoa(int(cfg.Port))))
	host, port, err := net.SplitHostPort(proxy.Addr())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	cfg.Host, cfg.Port, cfg.Fallbacks = host, uint16(number), nil
	if w.conn, err = pgx.ConnectConfig(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.conn.Close(context.WithoutCancel(t.Context())) }) // it may be cut already
	return w, proxy
}

// insert is one effect.
func (w *world) insert(id int64) pgtx.Statement {
	return pgtx.Statement{
		Step: pgtx.StepEffect, SQL: "INSERT INTO " + w.table + " (id) VALUES ($1)", Params: []pgtx.Param{pgtx.Int8(id)},
	}
}

// begin opens a transaction with these statements in its first round trip.
func (w *world) begin(first ...pgtx.Statement) *pgtx.Tx {
	w.t.Helper()
	tx, err := pgtx.Begin(w.t.Context(), w.conn, patient, first...)
	if err != nil {
		w.t.Fatal(err)
	}
	return tx
}

// effects are the ids that another session sees.
func (w *world) effects(want ...int64) {
	w.t.Helper()
	rows, err := w.Owner.Query(w.t.Context(), "SELECT id FROM "+w.table+" ORDER BY id")
	if err != nil {
		w.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		w.t.Fatal(err)
	}
	if len(got) != len(want) {
		w.t.Errorf("effects %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			w.t.Errorf("effects %v, want %v", got, want)
			return
		}
	}
}

// idle fails unless the session can be handed to somebody else as it is.
func (w *world) idle() {
	w.t.Helper()
	if s := w.conn.PgConn().TxStatus(); s != 'I' {
		w.t.Errorf("the session is left in transaction status %c", s)
	}
	var one int
	if err := w.conn.QueryRow(w.t.Context(), "SELECT 1").Scan(&one); err != nil {
		w.t.Errorf("the session's next user: %v", err)
	}
}

// closed fails unless nobody can use the session again.
func (w *world) closed() {
	w.t.Helper()
	if !w.conn.PgConn().IsClosed() {
		w.t.Error("a session in an unknown state was left open")
	}
}

// gone returns when the server has no such backend any more: what it was doing is
// committed or not.
func (w *world) gone(pid uint32) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	for alive := true; alive; {
		if err := w.Owner.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)", int32(pid)).Scan(&alive); err != nil {
			w.t.Fatalf("waiting for the backend to end: %v", err)
		}
	}
}
