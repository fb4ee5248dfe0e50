package rebalance

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"effectonce/pkg/stream"
)

// Name is a partition as the client names it.
type Name struct {
	Topic  string
	Number int32
}

// Compare orders names by topic and number.
func (n Name) Compare(o Name) int {
	return cmp.Or(cmp.Compare(n.Topic, o.Topic), cmp.Compare(n.Number, o.Number))
}

func (n Name) String() string { return fmt.Sprintf("%s/%d", n.Topic, n.Number) }

// State of a held partition. See the package comment.
type State string

// The states of a held partition.
const (
	Taking  State = "taking"
	Waiting State = "waiting" // paused, no queue; the takeover goes on in the background
	Arming  State = "arming"  // taken; the poll goroutine has yet to seek and resume
	Running State = "running"
	Stopped State = "stopped" // paused, no queue, until someone decides
)

// Cause says why a partition is stopped or waits, and what to do.
type Cause struct {
	Code string // one word, for metrics
	Text string // what happened, with offsets
	Fix  string // what the operator does next
	Lost Range  // offsets that are gone from under the position, if any
}

// Range is the offsets [From, To).
type Range struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

// String is one line, also where a server's message has several.
func (c Cause) String() string {
	text := c.Code + ": " + c.Text
	if c.Fix != "" {
		text += "\n" + c.Fix
	}
	var lines []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "; ")
}

// Held is one partition of this member's assignment.
type Held struct {
	Name      Name
	Claim     stream.Claim // Owner from the start; position and epoch once taken
	State     State
	Cause     Cause
	Since     time.Time // when it came into this state
	retakes   int       // takeovers after being fenced, without a calm minute between
	due       time.Time // of the next attempt while waiting
	proof     time.Time // no attempt before the group has answered a heartbeat that left later
	unstamped bool      // the group's offset is yet to follow the claim; see stamp.go
	told      bool      // people were told that its group offset was moved from outside
	vague     bool      // stopped for what is gone from Kafka, and its range is yet to be asked for
	written   Cause     // what is written down about its stop
	resolved  bool      // somebody has decided about it since it was assigned
}

// maxRetakes is how often a member that was fenced takes over again before it
// stops: its assignment stands, so somebody outside the group holds the rows.
const maxRetakes = 5

// calm is how long a claim must have lived for the count of retakes to begin anew.
const calm = time.Minute

func newOwner() stream.UUID {
	u := stream.NewUUID()
	u[6], u[8] = u[6]&0x0f|0x40, // version 4, variant 10: it is a uuid in Postgres
		u[8]&0x3f|0x80
	return u
}

func (h *Held) set(s State, c Cause, now time.Time) {
	h.State, h.Cause, h.Since = s, c, now
	h.unstamped = false // what was to be committed is of the state before
}
