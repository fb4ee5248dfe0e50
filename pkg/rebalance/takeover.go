package rebalance

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/pgtx"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

const (
	attempt  = 2 * time.Second        // one takeover statement
	pace     = 25 * time.Millisecond  // between attempts on a locked row; nothing tells when it is free
	inLine   = 200 * time.Millisecond // wait for one locked row, before those that are free by now are looked for
	slowPace = 500 * time.Millisecond // once the grace is over, and when the database does not answer

	linesAtOnce = 2 // locked rows waited for at a time: of the control connections, half
)

// found is a takeover's answer, with the topic's partition count when it was asked, and
// the furthest that a decision took the position back from, if the mirror asks for it.
type found struct {
	offsets.Answer
	known   int32
	rewound int64
}

// take asks Postgres for the claims of these partitions.
func (g *Group) take(ctx context.Context, hs []*Held) ([]found, error) {
	if len(hs) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("control connection: %w", err)
	}
	defer conn.Release()
	takings, known := g.takings(hs)
	answers, err := g.cfg.Offsets.Takeover(ctx, conn.Conn(), brief(), g.cfg.ID, g.cfg.Holder, takings, false)
	if err != nil {
		return nil, err
	}
	return g.found(ctx, conn.Conn(), answers, known)
}

// found adds to a takeover's answers what is needed to judge them.
func (g *Group) found(ctx context.Context, conn *pgx.Conn, answers []offsets.Answer, known []int32) ([]found, error) {
	rewound := map[stream.Partition]int64{}
	if ahead := g.mirroredAhead(answers); len(ahead) > 0 { // rare: behind a decision, or the database went back
		if err := pgtx.Once(ctx, conn, brief(), g.cfg.Offsets.Read(g.cfg.ID, ahead, false,
			func(r offsets.Row) { rewound[r.Partition] = r.Rewound })); err != nil {
			return nil, fmt.Errorf("decisions: %w", err)
		}
	}
	out := make([]found, len(answers))
	for i, a := range answers {
		out[i] = found{a, known[i], rewound[a.Claim.Partition]}
	}
	return out, nil
}

func (g *Group) takings(hs []*Held) (takings []offsets.Taking, known []int32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range hs {
		t := g.topics[h.Name.Topic]
		takings = append(takings, offsets.Taking{Claim: h.Claim, Generation: t.Generation})
		known = append(known, t.Partitions)
	}
	return takings, known
}

// Run takes over in the background what could not be taken in the callback, looks
// after what stands still, and has the group's offsets follow, until ctx ends.
func (g *Group) Run(ctx context.Context) error {
	var eg errgroup.Group
	eg.Go(func() error { return g.takeovers(ctx) })
	eg.Go(func() error { return g.attend(ctx) })
	eg.Go(func() error { return g.stamps(ctx) })
	return eg.Wait()
}

func (g *Group) takeovers(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.wake:
		case <-timer.C:
		}
		due, next := g.due(time.Now())
		if len(due) > 0 {
			g.retake(ctx, due)
			_, next = g.due(time.Now())
		}
		timer.Reset(next)
	}
}

// due returns the waiting partitions whose time has come, and how long until the
// next one's has.
func (g *Group) due(now time.Time) (due []*Held, next time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	next = time.Hour
	for _, h := range g.held {
		if h.State != Waiting || g.session.Beat.Before(h.proof) { // a heartbeat's answer wakes the background
			continue
		}
		if wait := h.due.Sub(now); wait <= 0 {
			due = append(due, h)
			next = 0
		} else {
			next = min(next, wait)
		}
	}
	return due, next
}

func (g *Group) retake(ctx context.Context, hs []*Held) {
	answers, err := g.take(ctx, hs)
	var lines errgroup.Group
	lines.SetLimit(linesAtOnce)
	for i, h := range hs {
		switch {
		case err != nil:
			g.postpone(h, slowPace)
			g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
		case answers[i].Outcome == offsets.Taken:
			g.arm(ctx, h, answers[i])
		case answers[i].Outcome == offsets.Locked:
			lines.Go(func() error {
				g.locked(ctx, h)
				return nil
			})
		case answers[i].Outcome == offsets.Missing:
			g.postpone(h, pace)
			if err := g.grow(ctx, h, answers[i]); err != nil {
				g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
				g.postpone(h, slowPace)
			}
		default:
			g.settle(h, answers[i])
		}
	}
	_ = lines.Wait() // each tells its own
}

func (g *Group) postpone(h *Held, d time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.due = time.Now().Add(d)
}

// arm hands a claim to the poll goroutine, which alone replaces a queue, seeks and
// resumes. SetOffsets never validates a leader epoch, so that is asked first.
func (g *Group) arm(ctx context.Context, h *Held, a found) {
	claim := a.Claim
	if cause, stop, err := g.truncated(ctx, claim); err != nil {
		g.wait(h, Cause{Code: "leader_epoch", Text: err.Error()}, slowPace)
		return
	} else if stop { // before a reset is honoured: that forgets the leader epoch
		g.stop(h, claim.Owner, cause, &claim)
		return
	}
	if !g.agrees(ctx, h, a) || !g.move(h, Waiting, Arming, claim) {
		return
	}
	g.board.Ask(func() {
		if !g.move(h, Arming, Running, claim) {
			return
		}
		cl := g.kafka()
		at := kgo.EpochOffset{Epoch: claim.LeaderEpoch, Offset: claim.Next}
		cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{h.Name.Topic: {h.Name.Number: at}})
		cl.ResumeFetchPartitions(map[string][]int32{h.Name.Topic: {h.Name.Number}})
		g.board.Open(claim) // behind the resume: who has the queue may stop the partition
		g.board.Tell(Event{Kind: "takeover", Name: h.Name, Claim: claim})
	})
}

// truncated asks Kafka where the leader epoch stored with the position ends.
func (g *Group) truncated(ctx context.Context, c stream.Claim) (Cause, bool, error) {
	if c.LeaderEpoch < 0 {
		return Cause{}, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 2*attempt)
	defer cancel()
	n := Name{c.TopicName, c.Partition.Number}
	end, _, err := epochEnd(ctx, kadm.NewClient(g.kafka()), n, c.LeaderEpoch)
	if err != nil || end < 0 || end >= c.Next {
		return Cause{}, false, err
	}
	return truncation(n, c.Next, end), true, nil
}

// locked waits out a transaction in flight; past the grace it ends the backend if
// it is ours. A zombie in mid-COPY is ended by no timeout of the server.
func (g *Group) locked(ctx context.Context, h *Held) {
	g.mu.Lock()
	waited, claim := time.Since(h.Since), h.Claim
	g.mu.Unlock()
	if waited < g.cfg.Grace {
		g.standInLine(ctx, h)
		return
	}
	ended, others, err := g.endBlockers(ctx, h)
	switch {
	case err != nil:
		g.board.Tell(Event{Kind: "retry", Name: h.Name, Err: err})
	case len(others) > 0:
		g.mu.Lock()
		if h.State == Waiting {
			h.Cause = Cause{
				Code: "locked", Text: "its position is held by " + strings.Join(others, ", "),
				Fix: "end that session: only sessions of this pipeline are ended by themselves",
			}
		}
		g.mu.Unlock()
	}
	for _, e := range ended {
		g.board.Tell(Event{Kind: "ended_backend", Name: h.Name, Claim: claim, Cause: Cause{Code: "zombie", Text: e}})
	}
	g.postpone(h, pace)
	if len(ended) == 0 {
		g.postpone(h, slowPace)
	}
}

// standInLine waits for the row a moment: an owner from whom the group took the
// partition away goes on committing, and between two of its transactions the row is
// free for whoever waits for it, hardly ever for who looks now and then.
func (g *Group) standInLine(ctx context.Context, h *Held) {
	g.postpone(h, pace)
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return // the next attempt says so
	}
	defer conn.Release()
	takings, known := g.takings([]*Held{h})
	set := pgtx.Settings{Lock: inLine, Statement: attempt, Idle: attempt}
	answers, err := g.cfg.Offsets.Takeover(ctx, conn.Conn(), set, g.cfg.ID, g.cfg.Holder, takings, true)
	switch {
	case err == nil && answers[0].Outcome == offsets.Taken:
		if found, err := g.found(ctx, conn.Conn(), answers, known); err == nil { // else the next attempt takes it again
			g.arm(ctx, h, found[0])
		}
	case pgtx.Code(err) == lockNotAvailable:
		g.postpone(h, 0) // a pause here is where the old owner gets its next turn
	}
}

const lockNotAvailable = "55P03"

// endBlockers waits for the row on one connection and asks on another who blocks
// it. A blocker whose application_name is this pipeline's is terminated; any other
// is named, never killed.
func (g *Group) endBlockers(ctx context.Context, h *Held) (ended, others []string, err error) {
	return EndBlockers(ctx, g.cfg.Control, g.cfg.Sessions, Wait{brief(), func(ctx context.Context, tx *pgtx.Tx) error {
		takings, _ := g.takings([]*Held{h})
		return tx.Run(ctx, g.cfg.Offsets.Take(g.cfg.ID, g.cfg.Holder, takings, true, nil))
	}})
}
