package pipelinecmd

import (
	"encoding/json"
	"strings"
	"testing"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/verbtest"
)

// world is a pipeline orders that has applied two records.
type world struct{ *verbtest.World }

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{verbtest.New(t, 2)}
	w.Apply(t, "key: order_id", 2)
	return w
}

// migrate runs the verb under a key rule, as the runtime role.
func (w *world) migrate(t *testing.T, rule string, args ...string) (out string, err error) {
	t.Helper()
	return w.Do(t, Command(), rule, append([]string{"migrate"}, args...)...)
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
	if got := w.Decisions(t); got != "widen , change keys were wrong" {
		t.Errorf("decisions: %s", got)
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
	w := &world{verbtest.New(t, 1)}
	if _, err := w.migrate(t, "key: order_id", "--yes"); exit.Code(err) != exit.Config || !strings.Contains(err.Error(), "never started") {
		t.Errorf("%v", err)
	}
	w.Broker = "127.0.0.1:1"
	if _, err := w.migrate(t, "key: order_id"); exit.Code(err) != exit.Unavailable {
		t.Errorf("a broker that is down: %d, %v", exit.Code(err), err)
	}
}
