package sink_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtest"
	"effectonce/internal/pgtx"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

func upserting(db *pgtest.DB, table string, conflict []string, columns ...string) sink.TableConfig {
	cfg := mapped(db, table, columns...)
	cfg.Mode, cfg.Conflict = sink.Upsert, conflict
	return cfg
}

// kafka-connect-jdbc#1081: two rows for one key in a statement failed with 21000.
// The last value wins, within a batch and over batches.
func TestLastValueWins(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	db.Table(t, "o", "id text, part int, v int, kept text DEFAULT 'kept', PRIMARY KEY (part, id)")
	table := open(t, conn, upserting(db, "o", []string{"id", "part"}, "v", "id", "part"))
	rec := func(v, id, part string) []stream.Value {
		return []stream.Value{number(v), text(id), number(part)}
	}
	write(t, conn, table, batchOf(rec("1", "a", "1"), rec("2", "b", "1"), rec("3", "a", "1"), rec("4", "a", "11"), rec("5", "a1", "1")))
	write(t, conn, table, batchOf(rec("6", "b", "1"), rec("7", "c", "1")))
	got := texts(t, db, "SELECT concat_ws(' ', part, id, v, kept) FROM "+db.User+".o ORDER BY part, id")
	if diff := cmp.Diff([]string{"1 a 3 kept", "1 a1 5 kept", "1 b 6 kept", "1 c 7 kept", "11 a 4 kept"}, got); diff != "" {
		t.Error(diff)
	}

	// Only some of a batch: the last among the picks.
	b := batchOf(rec("10", "c", "1"), rec("11", "c", "1"), rec("12", "c", "1"))
	table.Encode(b, 0)
	if err := apply(t.Context(), conn, table, b, []int{0, 1}); err != nil {
		t.Fatal(err)
	}
	if got = texts(t, db, "SELECT v::text FROM "+db.User+".o WHERE id = 'c'"); got[0] != "11" {
		t.Errorf("c = %s", got[0])
	}
}

// Forms of one key that differ in bytes only.
func TestEqualKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	for i, tt := range []struct {
		typ    string
		values []stream.Value
		want   int
	}{
		{"numeric", []stream.Value{number("1"), number("1.00"), number("10e-1"), number("1.01"), number("-1"), number("0"), number("-0.0"), number("1e4"), number("10000.0")}, 5},
		{"float8", []stream.Value{number("0"), number("-0"), number("0.0"), number("1"), number("-1")}, 3},
		{"float4", []stream.Value{number("0"), number("-0"), number("-1e-40")}, 2},
		{"char(5)", []stream.Value{text("a"), text("a "), text("a  b"), text(" a"), text("")}, 4},
		{"text", []stream.Value{text("a"), text("a "), text("A"), text("")}, 4},
		{"uuid", []stream.Value{text("00112233-4455-6677-8899-AABBCCDDEEFF"), text("00112233445566778899aabbccddeeff")}, 1},
		{"timestamptz", []stream.Value{text("2024-01-01T01:00:00+01:00"), text("2024-01-01T00:00:00Z")}, 1},
		{"bytea", []stream.Value{text(""), text("AA=="), text(`\x00`), text("AAA=")}, 3},
	} {
		name := fmt.Sprintf("t%d", i)
		db.Table(t, name, "k "+tt.typ+" PRIMARY KEY, n int")
		table := open(t, conn, upserting(db, name, []string{"k"}, "k", "n"))
		var rows [][]stream.Value
		for n, v := range tt.values {
			rows = append(rows, []stream.Value{v, number(fmt.Sprint(n))})
		}
		if faults := write(t, conn, table, batchOf(rows...)); len(faults) > 0 {
			t.Errorf("%s: %v", tt.typ, &faults[0])
		}
		got := texts(t, db, "SELECT count(*) || ' ' || max(n) FROM "+db.User+"."+name)
		if want := fmt.Sprintf("%d %d", tt.want, len(tt.values)-1); got[0] != want {
			t.Errorf("%s: count and last %s, want %s", tt.typ, got[0], want)
		}
	}
}

// A collation that takes two forms for one key ends in 21000, which the caller
// isolates: record by record it applies.
func TestNondeterministicKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	db.Exec(t, "CREATE COLLATION "+db.User+".nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
	db.Table(t, "n", "k text COLLATE "+db.User+".nocase PRIMARY KEY, v int")
	table := open(t, conn, upserting(db, "n", []string{"k"}, "k", "v"))
	if w := table.Warnings(nil); len(w) != 1 || !strings.Contains(w[0], "nondeterministic") {
		t.Errorf("warnings %q", w)
	}
	b := batchOf([]stream.Value{text("a"), number("1")}, []stream.Value{text("A"), number("2")})
	table.Encode(b, 0)
	if err := apply(t.Context(), conn, table, b, []int{0, 1}); pgtx.Code(err) != "21000" {
		t.Errorf("together: %v", err)
	}
	if err := apply(t.Context(), conn, table, b, []int{0}, []int{1}); err != nil {
		t.Fatal(err)
	}
	if got := texts(t, db, "SELECT k || v FROM "+db.User+".n"); got[0] != "a2" {
		t.Errorf("rows %v", got)
	}
}

// With no column besides the key there is nothing to set; through an updatable
// view the server finds the index below it.
func TestUpsertShapes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn := db.Conn(t)
	db.Table(t, "keys", "k int PRIMARY KEY")
	table := open(t, conn, upserting(db, "keys", []string{"k"}, "k"))
	write(t, conn, table, batchOf([]stream.Value{number("1")}, []stream.Value{number("1")}))
	write(t, conn, table, batchOf([]stream.Value{number("1")}, []stream.Value{number("2")}))
	db.Exec(t, "CREATE VIEW "+db.User+".v AS SELECT k FROM "+db.User+".keys")
	write(t, conn, open(t, conn, upserting(db, "v", []string{"k"}, "k")), batchOf([]stream.Value{number("3")}))
	if got := texts(t, db, "SELECT string_agg(k::text, '' ORDER BY k) FROM "+db.User+".keys"); got[0] != "123" {
		t.Errorf("keys %s", got[0])
	}

	db.Table(t, "plain", "k int, v int")
	db.Exec(t, "CREATE VIEW "+db.User+".w AS SELECT k, v FROM "+db.User+".plain")
	if _, err := sink.OpenTable(t.Context(), conn, upserting(db, "w", []string{"k"}, "k", "v")); !errors.Is(err, sink.ErrTable) || pgtx.Code(err) != "42P10" {
		t.Errorf("a view without a unique index below: %v", err)
	}
}

// fiware-cygnus#2197, kafka-connect-jdbc#385: two writers upserted the same rows
// in different orders and one died with 40P01. Here each transaction applies two
// picks of the same keys, one ascending, one descending by record.
func TestOneLockOrder(t *testing.T) {
	t.Parallel()
	const rounds, keys = 200, 60
	db := pgtest.New(t)
	db.Table(t, "o", "k text PRIMARY KEY, v int")
	cfg := upserting(db, "o", []string{"k"}, "k", "v")
	table := open(t, db.Conn(t), cfg)
	conns := []bool{false, true}
	group, ctx := errgroup.WithContext(t.Context())
	for w, descending := range conns {
		conn := db.Conn(t)
		r := rand.New(rand.NewPCG(9, uint64(w)))
		group.Go(func() error {
			for round := range rounds {
				var rows [][]stream.Value
				for i := range keys {
					n := i
					if descending {
						n = keys - 1 - i
					}
					if r.IntN(4) > 0 {
						rows = append(rows, []stream.Value{text(fmt.Sprint("key ", n)), number(fmt.Sprint(round))})
					}
				}
				b := batchOf(rows...)
				table.Encode(b, 0)
				if err := apply(ctx, conn, table, b, all(b, nil)); err != nil {
					return fmt.Errorf("round %d: %w", round, err)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// TestContextEnds: an Apply that waits for a lock ends with its context.
func TestContextEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	db.Table(t, "o", "k int PRIMARY KEY, v int")
	db.Exec(t, "INSERT INTO "+db.User+".o VALUES (1, 1)")
	conn := db.Conn(t)
	table := open(t, conn, upserting(db, "o", []string{"k"}, "k", "v"))
	holder, err := db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err = holder.Exec(t.Context(), "UPDATE "+db.User+".o SET v = 2"); err != nil {
		t.Fatal(err)
	}
	b := batchOf([]stream.Value{number("1"), number("3")})
	table.Encode(b, 0)
	tx, err := pgtx.Begin(t.Context(), conn, pgtx.DefaultSettings)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.WithoutCancel(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pid, start := conn.PgConn().PID(), time.Now()
	done := make(chan error, 1)
	go func() {
		_, err := table.Apply(ctx, tx, b, []int{0})
		done <- err
	}()
	waiting := fmt.Sprintf("SELECT count(*)::text FROM pg_locks WHERE NOT granted AND pid = %d", pid)
	for texts(t, db, waiting)[0] == "0" {
		if time.Since(start) > 20*time.Second {
			t.Fatal("it does not wait")
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Apply: %v", err)
	}
}
