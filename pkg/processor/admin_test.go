package processor_test

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/pkg/processor"
)

// unreachable points the pipeline at a database that nobody serves.
func (w *world) unreachable(t *testing.T) {
	t.Helper()
	var err error
	if w.cfg.Postgres, err = pgxpool.ParseConfig("postgres://nobody@127.0.0.1:1/nothing?sslmode=disable"); err != nil {
		t.Fatal(err)
	}
}

// While a dependency was down at the start nobody listened on the admin address: a
// supervisor took the process for dead and started it anew, again and again.
func TestTheAdminAddressAnswersWhileADependencyIsDown(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.admin(t)
	w.unreachable(t)
	w.run(t, func() bool { return strings.HasPrefix(w.get("/readyz"), "503 waiting for postgres 127.0.0.1:1: ") })
	w.run(t, func() bool { return w.get("/livez") == "200 ok\n" })
	w.run(t, func() bool { return strings.HasPrefix(w.get("/metrics"), "200 ") })
}

// An address that is taken is told before anything else is asked, by its setting.
func TestATakenAdminAddress(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.unreachable(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	w.cfg.Admin = l.Addr().String()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := processor.Run(ctx, w.cfg); err == nil || !strings.HasPrefix(err.Error(), "admin.listen: ") {
		t.Errorf("%v", err)
	}
}
