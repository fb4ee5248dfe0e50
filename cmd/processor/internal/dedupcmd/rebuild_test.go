package dedupcmd

import (
	"encoding/json"
	"strings"
	"testing"

	"effectonce/cmd/processor/internal/exit"
)

// TestRebuild: the plan changes nothing, --yes mends what check complains about, and
// blocks that are damaged are left alone.
func TestRebuild(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(t)
	for _, args := range [][]string{{"rebuild"}, {"rebuild", "--all", "--scope", "orders/0"}} {
		if code, _, text := w.processor(t, args...); code != exit.UsageError || !strings.Contains(text, "which scope") {
			t.Errorf("%v: %d, %s", args, code, text)
		}
	}
	if code, _, text := w.processor(t, "rebuild", "--scope", "orders/7"); code != exit.Refused || !strings.Contains(text, "no log of scope orders/7") {
		t.Errorf("%d, %s", code, text)
	}
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET filter_digest = '\\x00'")
	for _, c := range []struct {
		args        []string
		done        bool
		logs, wrong int
		ok          int // of check, afterwards
	}{
		{[]string{"rebuild", "--all"}, false, 2, 2, exit.Refused},
		{[]string{"rebuild", "--scope", "orders/1", "--yes"}, true, 1, 0, exit.Refused},
		{[]string{"rebuild", "--scope", "orders/0", "--yes"}, true, 1, 2, exit.OK},
		{[]string{"rebuild", "--all", "--yes"}, true, 2, 0, exit.OK},
	} {
		code, out, text := w.processor(t, append(c.args, "-o", "json")...)
		var got rebuilt
		if err := json.Unmarshal([]byte(out), &got); err != nil || code != exit.OK || got.Done != c.done || len(got.Logs) != c.logs || got.Logs[0].Digests != c.wrong {
			t.Errorf("%v: %d, %v, %s%s", c.args, code, err, out, text)
		}
		if code, out, text := w.processor(t, "check"); code != c.ok {
			t.Errorf("check after %v: %d, %s%s", c.args, code, out, text)
		}
	}
	w.Exec(t, "DELETE FROM "+w.Relation("blocks")+" WHERE first = (SELECT first FROM "+w.Relation("blocks")+" ORDER BY first LIMIT 1)")
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET filter_digest = '\\x00'")
	code, out, text := w.processor(t, "rebuild", "--all", "--yes")
	if code != exit.Refused || !strings.Contains(out, "damaged, not touched") || !strings.Contains(text, "orders/0: segment ") {
		t.Errorf("%d, %s%s", code, out, text)
	}
}
