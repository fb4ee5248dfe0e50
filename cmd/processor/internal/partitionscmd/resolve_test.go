package partitionscmd

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"effectonce/cmd/processor/internal/exit"
	"effectonce/cmd/processor/internal/verbtest"
)

// world is a pipeline orders of one partition that has applied ten records.
type world struct {
	*verbtest.World
	rule string
}

func newWorld(t *testing.T, rule string) *world {
	t.Helper()
	w := &world{verbtest.New(t, 1), rule}
	w.Apply(t, rule, 10)
	return w
}

// do runs a verb, as the runtime role.
func (w *world) do(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	return w.Do(t, Command(), w.rule, args...)
}

// call is one command of an operator and what comes of it.
type call struct {
	args []string
	code int
	says []string // on the output or in the error
	at   int      // the position afterwards
}

func (w *world) calls(t *testing.T, calls ...call) {
	t.Helper()
	for _, c := range calls {
		out, err := w.do(t, c.args...)
		if exit.Code(err) != c.code {
			t.Errorf("%q: exit code %d, want %d: %v", c.args, exit.Code(err), c.code, err)
		}
		for _, s := range c.says {
			if !strings.Contains(out+fmt.Sprint(err), s) {
				t.Errorf("%q: %q is not in\n%s%v", c.args, s, out, err)
			}
		}
		if at := w.Positions(t); at != c.at {
			t.Errorf("%q: the position is %d, want %d", c.args, at, c.at)
		}
	}
}

// B08: the position is 10 and the log begins at 40. What an operator sees on the way
// to 40; never to the end.
func TestAcceptLoss(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	accept := func(more ...string) []string {
		return append([]string{"resolve", "orders/0", "--accept-loss"}, more...)
	}
	w.calls(t, call{accept("--yes", "--reason", "x"), exit.Refused, []string{"nothing is lost", "it is at 10, the log is [0, 10)", "nothing was done"}, 10})
	w.Produce(t, 10, 100)
	if err := w.Fake.DeleteRecords("orders", 0, 40); err != nil {
		t.Fatal(err)
	}
	w.calls(t,
		call{accept(), exit.OK, []string{"log       [40, 100)", "position  10 -> 40", "cause     out_of_range", "30 offsets, 10 to 39, are gone", "nothing was done"}, 10},
		call{accept("--yes"), exit.UsageError, []string{"--reason"}, 10},
		call{[]string{"resolve", "orders/0", "--rewind-to", "100", "--yes", "--reason", "x"}, exit.Refused, []string{"100 is not in [40, 40]"}, 10},
		call{accept("--yes", "--reason", "retention was short"), exit.OK, []string{"position  10 -> 40", "done: whoever holds", "group's offset: moved"}, 40},
		call{accept("--yes", "--reason", "again"), exit.Refused, []string{"nothing is lost"}, 40},
	)
	if got := w.Decisions(t); got != "accept_loss retention was short" {
		t.Errorf("decisions: %s", got)
	}
}

// A rewind is for business keys; without them it is asked for twice.
func TestRewind(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	rewind := func(to string, more ...string) []string {
		return append([]string{"resolve", "orders/0", "--rewind-to", to}, more...)
	}
	w.calls(t,
		call{rewind("11"), exit.Refused, []string{"11 is not in [0, 10]"}, 10},
		call{rewind("3"), exit.OK, []string{"position  10 -> 3", "7 offsets are read again", "are duplicates", "nothing was done"}, 10},
		call{rewind("3", "--yes", "--reason", "the table was truncated"), exit.OK, []string{"done"}, 3},
		call{rewind("3", "--yes", "--reason", "try again"), exit.OK, []string{"position  3 -> 3", "done"}, 3},
	)
	bare := newWorld(t, "key: coordinates")
	bare.calls(t,
		call{rewind("3", "--yes", "--reason", "x"), exit.Refused, []string{"no business key", "7 offsets are applied again", "--apply-again permits it", "nothing was done"}, 10},
		call{rewind("3", "--yes", "--reason", "x", "--apply-again"), exit.OK, []string{"done"}, 3},
	)
}

func TestResolveAsJSON(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	out, err := w.do(t, "resolve", "orders/0", "--rewind-to", "4", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var got resolved
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Done || got.Verb != "rewind" || got.From.Offset != 10 || got.To.Offset != 4 || got.ReadAgain != 6 || got.End != 10 {
		t.Errorf("%s", out)
	}
}

// Wrong command lines, partitions that are not there, and services that are down.
func TestResolveRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "key: order_id")
	w.calls(t,
		call{[]string{"resolve", "orders", "--accept-loss"}, exit.UsageError, []string{"not TOPIC/PARTITION"}, 10},
		call{[]string{"resolve", "orders/x", "--accept-loss"}, exit.UsageError, []string{"not a partition's number"}, 10},
		call{[]string{"resolve", "orders/0"}, exit.UsageError, []string{"--accept-loss or --rewind-to"}, 10},
		call{[]string{"resolve", "orders/0", "--accept-loss", "--rewind-to", "3"}, exit.UsageError, []string{"--accept-loss or --rewind-to"}, 10},
		call{[]string{"resolve", "orders/7", "--accept-loss"}, exit.Refused, []string{"has no position"}, 10},
		call{[]string{"resolve", "payments/0", "--accept-loss"}, exit.Config, []string{"does not exist"}, 10},
	)
	w.rule = "key: kafka:key"
	w.calls(t, call{[]string{"resolve", "orders/0", "--rewind-to", "3"}, exit.Config, []string{"made for another configuration"}, 10})
	w.rule, w.Broker = "key: order_id", "127.0.0.1:1"
	w.calls(t, call{[]string{"resolve", "orders/0", "--accept-loss"}, exit.Unavailable, nil, 10})
}
