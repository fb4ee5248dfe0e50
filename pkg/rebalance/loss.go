package rebalance

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Policies for a position that Kafka has no records for.
const (
	Halt       = "stop"        // visibly, until somebody decides
	AcceptLoss = "accept_loss" // out of range: go on at the nearest offset that Kafka has
	Rewind     = "rewind"      // truncated: go on where the logs part
)

// Lost says what exactly is gone from under a position, and where it would go on. The
// cause is empty when nothing is.
func Lost(n Name, next int64, x Extent) (c Cause, to int64) {
	to, code := x.Loss(next)
	fix := fmt.Sprintf("processor partitions resolve %s --accept-loss goes on at %d", n, to)
	switch {
	case code == "":
	case next < x.Start:
		c = Cause{
			Code: code, Fix: fix, Lost: Range{next, x.Start},
			Text: fmt.Sprintf("offsets %d to %d are gone from Kafka unapplied: the position is %d, the log is [%d, %d)", next, x.Start-1, next, x.Start, x.End),
		}
	case code == Truncated:
		c = Cause{
			Code: code, Fix: fix, Lost: Range{to, next},
			Text: fmt.Sprintf("the log was truncated to offset %d, records up to %d were applied from the branch that is gone; it is [%d, %d) now", x.Fork, next, x.Start, x.End),
		}
	default:
		c = Cause{
			Code: code, Fix: fix, Lost: Range{to, next},
			Text: fmt.Sprintf("the position %d lies beyond the log, which is [%d, %d): it was cut, or is another one", next, x.Start, x.End),
		}
	}
	return c, to
}

// vague returns the partitions whose exact loss is yet to be found out.
func (g *Group) vague() (hs []*Held) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.State == Stopped && h.vague {
			hs = append(hs, h)
		}
	}
	return hs
}

// face finds out what exactly a stopped partition has lost, and decides where a policy
// says so. The position is read from its row: what is in flight moves it after the
// partition was stopped. Kafka and Postgres are asked in the background, since the poll
// goroutine, which stops partitions, holds up rebalances.
func (g *Group) face(ctx context.Context, h *Held) error {
	ctx, cancel := context.WithTimeout(ctx, 5*attempt)
	defer cancel()
	g.mu.Lock()
	claim := h.Claim
	g.mu.Unlock()
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	var row offsets.Row
	if err := pgtx.Once(ctx, conn.Conn(), brief(),
		g.cfg.Offsets.Read(g.cfg.ID, []stream.Partition{claim.Partition}, false, func(r offsets.Row) { row = r })); err != nil {
		return fmt.Errorf("position: %w", err)
	}
	if row.Owner != claim.Owner { // decided about, or taken over: not ours to judge
		return nil
	}
	adm := kadm.NewClient(g.kafka())
	x, err := FindExtent(ctx, adm, h.Name, row.LeaderEpoch)
	if err != nil {
		return err
	}
	cause, to := Lost(h.Name, row.Next, x)
	switch policy := g.policy(cause, to < row.Next); {
	case cause.Code == "": // it moved on meanwhile, or the log came back
	case policy == "":
		g.refine(h, claim.Owner, cause)
		return nil
	default:
		epoch, err := x.EpochOf(ctx, adm, h.Name, to)
		if err != nil {
			return err
		}
		if err := g.accept(ctx, conn.Conn(), row, offsets.Decision{Reason: policy, Detail: detail(row, cause, to, epoch)}, to, epoch); err != nil {
			return fmt.Errorf("%s: %w", policy, err)
		}
		cause.Fix = fmt.Sprintf("%s: goes on at %d", policy, to)
		g.board.Tell(Event{Kind: "accepted_loss", Name: h.Name, Claim: claim, Cause: cause})
	}
	g.again(h)
	return nil
}

// accept moves the position in a transaction of its own, as an operator's decision does.
// If its outcome is unknown, the next look tells whose the position is.
func (g *Group) accept(ctx context.Context, conn *pgx.Conn, row offsets.Row, d offsets.Decision, to int64, epoch int32) error {
	d.Kind = AcceptLoss
	return pgtx.Do(ctx, conn, brief(), func(tx *pgtx.Tx) error {
		return g.cfg.Offsets.Move(ctx, tx, g.cfg.ID, offsets.Move{
			Partition: row.Partition, Owner: row.Owner, Generation: row.Generation, From: row.Next, To: to, LeaderEpoch: epoch, Mirror: -1,
		}, d)
	})
}

// detail is what is written down about it.
func detail(row offsets.Row, c Cause, to int64, epoch int32) []byte {
	type place struct {
		Offset      int64 `json:"offset"`
		LeaderEpoch int32 `json:"leader_epoch"`
	}
	text, _ := json.Marshal(map[string]any{ //nolint:errchkjson // strings and numbers: never fails
		"cause": c.Code, "what": c.Text, "from": place{row.Next, row.LeaderEpoch}, "to": place{to, epoch}, "lost": c.Lost,
	})
	return text
}

// brief bounds a statement of the background.
func brief() pgtx.Settings { return pgtx.Settings{Lock: attempt, Statement: attempt, Idle: attempt} }

// policy is the setting that accepts a loss without asking anybody, empty if none does.
func (g *Group) policy(c Cause, back bool) string {
	switch {
	case back && g.cfg.ByOffset:
	case c.Code == Truncated && g.cfg.OnTruncated == Rewind:
		return "policy on_truncated: " + Rewind
	case c.Code == outside && g.cfg.OnOutOfRange == AcceptLoss:
		return "policy on_out_of_range: " + AcceptLoss
	}
	return ""
}

// refine replaces the cause of a stopped partition by one that has the range.
func (g *Group) refine(h *Held, owner stream.UUID, c Cause) {
	g.mu.Lock()
	ok := g.held[h.Name] == h && h.State == Stopped && h.Claim.Owner == owner
	if ok {
		h.Cause, h.vague = c, false
	}
	claim := h.Claim
	g.mu.Unlock()
	if ok {
		g.board.Tell(Event{Kind: "stopped", Name: h.Name, Claim: claim, Cause: c})
	}
}
