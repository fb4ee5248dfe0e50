package rebalance_test

import (
	"testing"

	"effectonce/pkg/rebalance"
)

// A server's message with several lines broke the answer of /readyz, a line each.
func TestACauseIsOneLine(t *testing.T) {
	t.Parallel()
	for want, c := range map[string]rebalance.Cause{
		"setup: it fails":                          {Code: "setup", Text: "it fails"},
		"setup: it fails; mend it":                 {Code: "setup", Text: "it fails", Fix: "mend it"},
		"setup: two rows; the first; see; mend it": {Code: "setup", Text: "two rows\n\tthe first\r\n\nsee\n", Fix: "mend it"},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
