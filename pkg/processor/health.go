package processor

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"effectonce/pkg/rebalance"
)

// health is what /livez and /readyz answer from.
type health struct {
	mu    sync.Mutex // guards what follows
	beat  time.Time  // last turn of the poll loop
	err   error      // of the last watch
	since time.Time  // when err began
}

func newHealth() *health { return &health{beat: time.Now()} }

func (h *health) pulse() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.beat = time.Now()
}

// database notes a watch's outcome, and returns how long there was no answer before.
func (h *health) database(err error) (silent time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.err != nil:
		silent = time.Since(h.since)
	case err != nil:
		h.since = time.Now()
	}
	h.err = err
	return silent
}

// wedged is how long the poll loop may be silent before /livez fails.
const wedged = 60 * time.Second

// patience is how long the database may not answer, and a partition may wait for
// its takeover, before /readyz fails.
const patience = 15 * time.Second

// live reports whether the poll loop turns.
func (h *health) live(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if silent := now.Sub(h.beat); silent > wedged {
		return fmt.Errorf("the poll loop has not turned for %s", silent.Round(time.Second))
	}
	return nil
}

func (h *health) databaseUp(now time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil && now.Sub(h.since) > patience {
		return fmt.Errorf("the database does not answer since %s: %s", h.since.Format(time.RFC3339), oneLine(h.err))
	}
	return nil
}

func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// ready lists what stands in the way, a line each: in general, and partitions that
// do not run.
func (p *Processor) ready(now time.Time) (faults, still []string) {
	for _, err := range []error{p.health.live(now), p.health.databaseUp(now), p.member(now)} {
		if err != nil {
			faults = append(faults, err.Error())
		}
	}
	for _, h := range p.group.Held() {
		if h.State == rebalance.Stopped || h.State != rebalance.Running && now.Sub(h.Since) > patience {
			still = append(still, fmt.Sprintf("%s %s at offset %d: %s", h.Name, h.State, h.Claim.Next, h.Cause))
		}
	}
	names, stalls := p.watchdog.stalls()
	for _, n := range names {
		s := stalls[n]
		faults = append(faults, fmt.Sprintf("%s stands still since %s: %s", n, s.since.Format(time.RFC3339), s.why.text()))
	}
	standings, _ := p.list.standings()
	for n, s := range standings {
		if s.tries >= suspectAfter {
			faults = append(faults, fmt.Sprintf("%s at offset %d: its batch failed %d times in a row, see the log", n, s.claim.Next, s.tries))
		}
	}
	return faults, still
}

// report writes what stands in the way or, if verbose, every partition, where those
// that do not run have their causes.
func (p *Processor) report(w io.Writer, verbose bool, faults, still []string, now time.Time) {
	lines := slices.Concat(faults, still)
	switch {
	case len(lines) == 0:
		lines = []string{"ok"}
	case verbose && len(still) > 0:
		lines = append(faults, fmt.Sprintf("not running: %d partitions", len(still)))
	}
	for _, l := range lines {
		_, _ = fmt.Fprintln(w, l) // a client that is gone misses it
	}
	if !verbose {
		return
	}
	standings, bytes := p.list.standings()
	_, _ = fmt.Fprintf(w, "pipeline %s, group protocol %s, %d bytes in flight\n",
		p.cfg.Pipeline, cmp.Or(p.group.Session().Protocol, "not known yet"), bytes)
	for _, h := range p.group.Held() {
		s, running := standings[h.Name]
		if !running {
			_, _ = fmt.Fprintf(w, "%s %s offset %d epoch %d %s\n", h.Name, h.State, h.Claim.Next, h.Claim.Epoch, h.Cause)
			continue
		}
		_, _ = fmt.Fprintf(w, "%s %s offset %d epoch %d queued %d keys %d sealed %d filter %.0f%%%s\n",
			h.Name, h.State, s.claim.Next, s.claim.Epoch, s.records, s.view.Keys, s.view.Sealed, 100*s.view.Ready, p.behind(h.Name, s, now))
	}
}

// behind says, for the line of a partition that runs, what holds its next records back.
// It is ready all the same: no restart ends somebody else's transaction.
func (p *Processor) behind(n rebalance.Name, s standing, now time.Time) string {
	t, ok := p.tails.of(n)
	if !ok || !t.blocked(s.claim.Next, p.cfg.BlockedAfter, now) {
		return ""
	}
	return fmt.Sprintf(" blocked at the last stable offset %d since %s: %d offsets behind it wait for the end of the transaction of %s",
		t.stable, t.since.Format(time.RFC3339), t.end-t.stable, cmp.Or(t.writer, "a producer that Kafka does not name"))
}
