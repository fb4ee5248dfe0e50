package processor

import (
	"testing"
	"time"
)

// A stable offset that moves, however slowly, is not a transaction that hangs; nor is
// a partition blocked that has not read up to it.
func TestBlocked(t *testing.T) {
	t.Parallel()
	const limit = time.Minute
	start := time.Unix(0, 0)
	type answer struct {
		end, stable int64
		after       time.Duration
	}
	for name, c := range map[string]struct {
		answers  []answer
		position int64
		blocked  bool
	}{
		"nothing behind":            {[]answer{{10, 10, 0}, {10, 10, 2 * limit}}, 10, false},
		"not for long":              {[]answer{{15, 10, 0}, {15, 10, limit - 1}}, 10, false},
		"for long":                  {[]answer{{15, 10, 0}, {15, 10, limit}}, 10, true},
		"while more is written":     {[]answer{{15, 10, 0}, {16, 10, limit / 2}, {17, 10, limit}}, 10, true},
		"it moved meanwhile":        {[]answer{{15, 10, 0}, {16, 11, limit / 2}, {17, 11, limit}}, 11, false},
		"it was free meanwhile":     {[]answer{{15, 10, 0}, {15, 15, limit / 2}, {17, 15, limit}}, 15, false},
		"slow":                      {[]answer{{15, 10, 0}, {15, 10, limit}}, 9, false},
		"end asked before stable":   {[]answer{{10, 12, 0}, {10, 12, limit}}, 12, false},
		"over, and read to the end": {[]answer{{15, 10, 0}, {15, 10, limit}, {15, 15, 2 * limit}}, 15, false},
	} {
		var got tail
		now := start
		for _, a := range c.answers {
			now = start.Add(a.after)
			got = got.follow(a.end, a.stable, now)
		}
		if b := got.blocked(c.position, limit, now); b != c.blocked {
			t.Errorf("%s: blocked %v", name, b)
		}
		if lag := got.lag(c.position); lag != got.stable-c.position {
			t.Errorf("%s: lag %d", name, lag)
		}
	}
	if lag := (tail{stable: 4}).lag(5); lag != 0 {
		t.Errorf("lag %d of a position beyond what Kafka said last", lag)
	}
}
