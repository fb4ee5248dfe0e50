package pipelinecmd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/run"
	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
	"effectonce/pkg/processor"
)

// world is a pipeline orders that has applied two records.
type world struct {
	*pgtest.DB
	broker string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{DB: pgtest.New(t)}
	w.broker = kafkatest.Fake(t, 2, "orders").ListenAddrs()[0]
	w.Table(t, "orders", "order_id text")
	for _, id := range []string{"a", "b"} {
		kafkatest.ProduceTo(t, w.broker, &kgo.Record{Topic: "orders", Key: []byte(id), Value: fmt.Appendf(nil, `{"order_id":%q}`, id)})
	}
	loaded, err := config.Load(config.Options{File: w.file(t, "key: order_id")})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := run.Pipeline(loaded.Config, zerolog.Nop())
	if err != nil {
		t.Fatal(err)
	}
	cfg.Admin = ""
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- processor.Run(ctx, cfg) }()
	for n := 0; n < 2; {
		if err := w.Owner.QueryRow(ctx, "SELECT coalesce(sum(next_offset), 0) FROM "+w.Relation("positions")).Scan(&n); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	return w
}

// file is a configuration of the pipeline under a key rule.
func (w *world) file(t *testing.T, rule string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "orders.yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, `
pipeline: orders
kafka: {brokers: [%q], topics: [orders]}
postgres: {dsn: %q, schema: %q}
%s
sink: {table: {schema: %q, name: orders, columns: {order_id: order_id}}}
`, w.broker, w.RuntimeDSN, w.Schema, rule, w.User), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// migrate runs the verb under a key rule, as the runtime role.
func (w *world) migrate(t *testing.T, rule string, args ...string) (out string, err error) {
	t.Helper()
	cmd := Command()
	var b bytes.Buffer
	cmd.SetOut(&b)
	cmd.SetErr(&b)
	cmd.SetArgs(append([]string{"migrate", "-c", w.file(t, rule)}, args...))
	err = cmd.ExecuteContext(t.Context())
	return b.String(), err
}

// What an operator sees on the way from one key rule to another.
func TestMigrate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		what, rule string
		args       []string
		code       int
		says       []string
	}{
		{"the rule it has", "key: order_id", []string{"--yes"}, exit.OK, []string{"nothing to change: key order_id, key_missing dead_letter, scope partition"}},
		{"a plan", "key: kafka:key", nil, exit.OK, []string{"from  key order_id,", "to    key kafka:key,", "orders  partition  2           2     forgotten", "--forget-keys", "nothing was done"}},
		{"without permission", "key: kafka:key", []string{"--yes"}, exit.Refused, []string{"forgotten", "nothing was done"}},
		{"nothing was done", "key: order_id", []string{"--yes"}, exit.OK, []string{"nothing to change"}},
		{"to scope topic", "{key: order_id, scope: topic}", []string{"--yes"}, exit.OK, []string{"partition -> topic", "kept", "done: start members"}},
		{"and back", "key: order_id", nil, exit.OK, []string{"topic -> partition", "forgotten"}},
		{"with permission", "key: kafka:key", []string{"--yes", "--forget-keys", "--reason", "keys were wrong"}, exit.OK, []string{"topic -> partition", "forgotten", "done: start members"}},
		{"again", "key: kafka:key", []string{"--yes"}, exit.OK, []string{"nothing to change"}},
	} {
		out, err := w.migrate(t, strings.Trim(strings.ReplaceAll(c.rule, ", ", "\n"), "{}"), c.args...)
		if exit.Code(err) != c.code {
			t.Errorf("%s: exit code %d, want %d: %v", c.what, exit.Code(err), c.code, err)
		}
		for _, s := range c.says {
			if !strings.Contains(out, s) {
				t.Errorf("%s: %q is not in\n%s", c.what, s, out)
			}
		}
	}
	var decisions string
	if err := w.Owner.QueryRow(t.Context(), "SELECT string_agg(kind || ' ' || reason, ', ' ORDER BY id) FROM "+w.Relation("decisions")).Scan(&decisions); err != nil {
		t.Fatal(err)
	}
	if decisions != "widen , change keys were wrong" {
		t.Errorf("decisions: %s", decisions)
	}
}

func TestMigrateAsJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	out, err := w.migrate(t, "key: kafka:key", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got result
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Done || len(got.Topics) != 1 || got.Topics[0].Keys != 2 || got.Topics[0].Kept || got.Topics[0].To.Scope != "partition" {
		t.Errorf("%s", out)
	}
}

func TestMigrateOfNothing(t *testing.T) {
	t.Parallel()
	w := &world{DB: pgtest.New(t), broker: kafkatest.Fake(t, 1, "orders").ListenAddrs()[0]}
	if _, err := w.migrate(t, "key: order_id", "--yes"); exit.Code(err) != exit.Config || !strings.Contains(err.Error(), "never started") {
		t.Errorf("%v", err)
	}
	w.broker = "127.0.0.1:1"
	if _, err := w.migrate(t, "key: order_id"); exit.Code(err) != exit.Unavailable {
		t.Errorf("a broker that is down: %d, %v", exit.Code(err), err)
	}
}
