package rebalance

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// reset is what a decision about an offset moved from outside is written down with.
// Records [From, To) are skipped; or [To, From) are read again.
type reset struct {
	From     int64 `json:"from"`
	To       int64 `json:"to"`
	LogStart int64 `json:"log_start"`
	LogEnd   int64 `json:"log_end"`
}

func (r reset) String() string {
	if r.To > r.From {
		return fmt.Sprintf("the group's offset was moved to %d from outside and is honoured: offsets %d to %d are skipped", r.To, r.From, r.To-1)
	}
	return fmt.Sprintf("the group's offset was moved to %d from outside and is honoured: offsets %d to %d are read again, keys that are known have no second effect",
		r.To, r.To, r.From-1)
}

// honour moves the position to where the group's offset was moved from outside. The
// partition is taken over again then, and found there. A member that is killed in
// between leaves it at that very offset, since nothing is applied before the mirror is
// ours: the next one has nothing to decide.
func (g *Group) honour(ctx context.Context, h *Held, claim stream.Claim, to int64) {
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	r := reset{From: claim.Next, To: to}
	refusal, err := g.refuses(ctx, h.Name, claim, &r)
	if err == nil && refusal == "" {
		err = g.follow(ctx, h.Name, claim, r)
	}
	switch {
	case err != nil: // not known, or not any more what was decided about: looked at again
		g.postpone(h, slowPace)
		g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: fmt.Errorf("external reset: %w", err)})
	case refusal != "":
		g.stop(h, claim.Owner, Cause{
			Code: "external_reset",
			Text: fmt.Sprintf("the group's offset was moved to %d from outside, Postgres is at %d, and it is not honoured: %s", to, claim.Next, refusal),
			Fix:  goesOn(h.Name, claim.Next),
		}, &claim)
	default:
		g.board.Tell(Event{Kind: "external_reset", Name: h.Name, Claim: claim, Cause: Cause{Code: "external_reset", Text: r.String()}})
		g.postpone(h, 0)
	}
}

// refuses says why a reset cannot be honoured, and fills in what the log holds. Nothing
// is clamped, and nothing read again of which it is not known what was applied.
func (g *Group) refuses(ctx context.Context, n Name, claim stream.Claim, r *reset) (string, error) {
	adm := kadm.NewClient(g.kafka())
	x, err := FindExtent(ctx, adm, n, -1)
	if err != nil {
		return "", err
	}
	r.LogStart, r.LogEnd = x.Start, x.End
	switch {
	case r.To < x.Start || r.To > x.End:
		return fmt.Sprintf("the log is [%d, %d)", x.Start, x.End), nil
	case r.To > r.From:
		return "", nil
	case g.cfg.Keyless:
		return "there is no business key, so what is read again would be applied again", nil
	case g.cfg.ByOffset && r.From > x.End:
		return "the log was cut below the position, and records without a key are known by their offset: they would be taken for those that were there before", nil
	}
	known, err := g.knownFrom(ctx, adm, n, claim)
	if err == nil && r.To < known {
		return fmt.Sprintf("keys of records below %d may be forgotten, by dedup.retention or with another key rule, so they would be applied again", known), nil
	}
	return "", err
}

// knownFrom is the offset from which on the keys of all records below the position are
// known.
func (g *Group) knownFrom(ctx context.Context, adm *kadm.Client, n Name, claim stream.Claim) (int64, error) {
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return 0, fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	keys := Keys{g.cfg.ID, g.cfg.Retention, g.cfg.Offsets, g.cfg.Log}
	known, err := keys.Known(ctx, conn.Conn(), brief(), adm, n.Topic, claim.Partition, claim.Next)
	return known.From(), err
}

// follow moves the position, if it still is what the decision was made about.
func (g *Group) follow(ctx context.Context, n Name, claim stream.Claim, r reset) error {
	g.mu.Lock()
	generation := g.topics[n.Topic].Generation
	g.mu.Unlock()
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	detail, _ := json.Marshal(r) //nolint:errchkjson // numbers: never fails
	return pgtx.Do(ctx, conn.Conn(), brief(), func(tx *pgtx.Tx) error {
		return g.cfg.Offsets.Move(ctx, tx, g.cfg.ID, offsets.Move{
			Partition: claim.Partition, Owner: claim.Owner, Generation: generation, From: r.From, To: r.To, LeaderEpoch: -1, Mirror: -1,
		}, offsets.Decision{Kind: "external_reset", Reason: "policy on_external_reset: honour", Detail: detail})
	})
}
