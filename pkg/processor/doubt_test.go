package processor_test

import (
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"effectonce/internal/pgproxytest"
)

// through sends the pipeline's sessions through a proxy.
func (w *world) through(t *testing.T) *pgproxytest.Proxy {
	t.Helper()
	u, err := url.Parse(w.db.RuntimeDSN)
	if err != nil {
		t.Fatal(err)
	}
	proxy := pgproxytest.Start(t, u.Host)
	u.Host = proxy.Addr()
	if w.cfg.Postgres, err = pgxpool.ParseConfig(u.String()); err != nil {
		t.Fatal(err)
	}
	return proxy
}

func (w *world) exact(t *testing.T, keys int64) {
	t.Helper()
	if n := w.count(t, "SELECT count(*) FROM "+w.orders()); n != keys {
		t.Errorf("%d effects, want %d", n, keys)
	}
	if n := w.count(t, "SELECT count(DISTINCT order_id) FROM "+w.orders()); n != keys {
		t.Errorf("%d keys, want %d", n, keys)
	}
	if n := w.count(t, "SELECT coalesce(sum(octet_length(fingerprints)), 0) / 16 FROM "+w.db.Relation("runs")); n != keys {
		t.Errorf("%d fingerprints in the runs, want %d", n, keys)
	}
}

// COMMIT is cut before it reached the server, or behind it: either way each key
// has one effect, and COMMIT is not sent again.
func TestUnknownCommit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault   pgproxytest.Fault
		outcome string
	}{
		"before it reached the server": {pgproxytest.CutBeforeCommit, "rolled_back"},
		"after it reached the server":  {pgproxytest.CutAfterCommit, "committed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2)
			w.admin(t)
			proxy := w.through(t)
			var ids []string
			for i := range 500 {
				ids = append(ids, fmt.Sprintf("o%d", i%450))
			}
			w.produce(t, ids...)
			proxy.Arm(c.fault, pgproxytest.Filter{SQL: "append_runs("})
			var more []string
			for i := range 500 {
				more = append(more, fmt.Sprintf("o%d", i+100)) // 350 repeats, 150 new
			}
			again := sync.OnceFunc(func() {
				<-proxy.Fired()
				w.produce(t, more...)
			})
			w.run(t, func() bool {
				if !w.at(t, 500)() && !w.at(t, 1000)() {
					return false
				}
				again()
				return w.at(t, 1000)() && strings.Contains(w.get("/metrics"), `effectonce_unknown_commits_total{outcome="`+c.outcome+`"}`)
			})
			w.exact(t, 600)
		})
	}
}

// A lagging replica is promoted: rows, runs and effects go back together while the
// pipeline holds its claims and is idle. Nothing but the watch would notice.
func TestTheDatabaseGoesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 2)
	w.admin(t)
	ids := func(from, to int) (out []string) {
		for i := from; i < to; i++ {
			out = append(out, fmt.Sprintf("o%d", i))
		}
		return out
	}
	w.produce(t, ids(0, 300)...)
	tables := map[string]string{
		w.orders(): "orders_copy", w.db.Relation("positions"): "positions_copy", w.db.Relation("logs"): "logs_copy",
		w.db.Relation("runs"): "runs_copy",
	}
	save := sync.OnceFunc(func() {
		for table, name := range tables {
			w.db.Exec(t, "CREATE TABLE "+quoted(w.db.User, name)+" AS SELECT * FROM "+table)
		}
		w.produce(t, ids(300, 500)...)
	})
	restore := sync.OnceFunc(func() {
		var script strings.Builder
		for table, name := range tables {
			if table == w.db.Relation("logs") {
				fmt.Fprintf(&script, `UPDATE %s l SET head = c.head, head_id = c.head_id FROM %s c WHERE c.id = l.id;`, table, quoted(w.db.User, name))
				continue
			}
			fmt.Fprintf(&script, "DELETE FROM %s; INSERT INTO %s SELECT * FROM %s;", table, table, quoted(w.db.User, name))
		}
		w.db.Exec(t, "BEGIN;"+script.String()+"COMMIT")
	})
	w.run(t, func() bool {
		if !w.at(t, 300)() && !w.at(t, 500)() {
			return false
		}
		save()
		if !w.at(t, 500)() {
			return false
		}
		restore()
		return strings.Contains(w.get("/metrics"), "effectonce_differences_total") &&
			!strings.Contains(w.get("/metrics"), "effectonce_differences_total 0") && w.at(t, 500)()
	})
	w.exact(t, 500)
}
