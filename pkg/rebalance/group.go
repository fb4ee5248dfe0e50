package rebalance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/internal/pgtx"
	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Config is what a Group needs to know.
type Config struct {
	Pipeline string
	ID       int64            // of the pipeline's row
	Topics   map[string]Topic // by name, as found at start
	Grows    bool             // new partitions are simply added: no scope rests on their count
	Holder   string           // host and pid, written beside the owner
	Sessions string           // prefix of application_name: backends that a takeover may end
	Grace    time.Duration    // how long a takeover waits before it ends our own stuck backends
	OnReset  string           // warn or fail: the group's offset was moved by hand
	Offsets  *offsets.Store
	Log      *dedup.Store
	Control  *pgxpool.Pool // its own connections: a committer behind a zombie never starves the takeover
}

// Board is the side of the processor: queues and the poll goroutine.
type Board struct {
	Open func(stream.Claim)           // the claim is ours: open its queue
	Drop func(owner stream.UUID)      // it is not any more: drop its queue; never waits
	Ask  func(onPollGoroutine func()) // between hand-off and AllowRebalance
	Tell func(Event)                  // for log and metrics
}

// Event is something people want to see.
type Event struct {
	Kind  string // takeover, waiting, stopped, fenced, ended_backend, external_reset, retry
	Name  Name
	Claim stream.Claim
	Cause Cause
	Err   error
}

// Group is this process's membership. Its methods are the client's callbacks.
type Group struct {
	cfg   Config
	board Board
	wake  chan struct{} // the background has something to do

	mu      sync.Mutex // guards what follows
	client  *kgo.Client
	topics  map[string]Topic
	held    map[Name]*Held
	mirrors map[Name]mirror
}

// New returns a group without partitions.
func New(cfg Config, board Board) *Group {
	return &Group{
		cfg: cfg, board: board, wake: make(chan struct{}, 1), topics: cfg.Topics,
		held: map[Name]*Held{}, mirrors: map[Name]mirror{},
	}
}

// Options are the client options this package owns. ctx lives as long as the client
// and is not the signal's: a client whose context ends cannot leave the group.
func (g *Group) Options(ctx context.Context) []kgo.Opt {
	return []kgo.Opt{
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // never used: Adjust names every offset
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),       // no library default decides
		kgo.OnPartitionsAssigned(g.assigned), kgo.OnOffsetsFetched(g.fetched), kgo.AdjustFetchOffsetsFn(g.adjust),
		kgo.OnPartitionsRevoked(g.dropped), kgo.OnPartitionsLost(g.dropped),
		kgo.AutoCommitMarks(),
		kgo.WithContext(stamped(ctx, g.cfg.Pipeline)),
	}
}

// assigned clears pauses, which outlive assignments, and registers: an assigned
// partition whose offset Kafka does not tell is never asked for in adjust.
func (g *Group) assigned(_ context.Context, cl *kgo.Client, m map[string][]int32) {
	g.mu.Lock()
	g.client = cl
	for topic, parts := range m {
		for _, n := range parts {
			g.register(Name{topic, n})
		}
	}
	g.mu.Unlock()
	cl.ResumeFetchPartitions(m)
}

// fetched keeps what the group has committed, for the mirror's check in adjust.
func (g *Group) fetched(_ context.Context, cl *kgo.Client, resp *kmsg.OffsetFetchResponse) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.client = cl
	for _, rg := range resp.Groups {
		for _, t := range rg.Topics {
			for _, p := range t.Partitions {
				g.mirrors[Name{t.Topic, p.Partition}] = mirrorOf(g.cfg.Pipeline, p.Offset, p.Metadata)
			}
		}
	}
	return nil
}

// adjust takes over what was assigned and answers with Postgres's positions. It
// never fails: what could not be taken is paused and goes on in the background.
// Every partition asked for is in the answer; one left out would never be fetched.
func (g *Group) adjust(ctx context.Context, m map[string]map[int32]kgo.Offset) (map[string]map[int32]kgo.Offset, error) {
	taking := g.begin(m)
	answers, err := g.take(ctx, taking)
	for i, h := range taking {
		if err != nil {
			g.wait(h, Cause{Code: "takeover", Text: err.Error()}, 0)
			continue
		}
		g.settle(h, answers[i])
	}
	g.fill(m)
	g.poke()
	return m, nil
}

// begin registers the partitions that are new and returns those to take over. One
// begun in a cancelled session keeps its owner.
func (g *Group) begin(m map[string]map[int32]kgo.Offset) []*Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	var taking []*Held
	for topic, parts := range m {
		for n := range parts {
			h := g.register(Name{topic, n})
			if h.State == Taking {
				taking = append(taking, h)
			}
		}
	}
	slices.SortFunc(taking, func(a, b *Held) int { return a.Claim.Partition.Compare(b.Claim.Partition) })
	return taking
}

// register returns what is held under this name, after adding it if it is new.
func (g *Group) register(n Name) *Held {
	if h := g.held[n]; h != nil {
		return h
	}
	h := &Held{Name: n, State: Taking, Since: time.Now(), Claim: stream.Claim{
		Partition: stream.Partition{Topic: g.topics[n.Topic].ID, Number: n.Number}, TopicName: n.Topic,
		Owner: newOwner(), LeaderEpoch: -1,
	}}
	g.held[n] = h
	return h
}

// settle acts on a takeover's first answer.
func (g *Group) settle(h *Held, a found) {
	switch a.Outcome {
	case offsets.Taken:
		if cause, stop := g.mirrorSays(h.Name, a.Claim.Next); stop {
			g.stop(h, a.Claim.Owner, cause, &a.Claim)
			return
		}
		if g.move(h, Taking, Running, a.Claim) {
			g.board.Open(a.Claim)
			g.board.Tell(Event{Kind: "takeover", Name: h.Name, Claim: a.Claim})
		}
	case offsets.Locked:
		g.mu.Lock()
		h.Claim.Next, h.Claim.LeaderEpoch = a.Claim.Next, a.Claim.LeaderEpoch
		g.mu.Unlock()
		g.wait(h, Cause{Code: "locked", Text: "a transaction holds its position; last held by " + a.Holder}, 0)
	case offsets.Missing:
		if cause, stop := g.missing(h.Name, a.known); stop {
			g.stop(h, a.Claim.Owner, cause, nil)
			return
		}
		g.wait(h, Cause{Code: "growing", Text: "its position is being added"}, 0)
	case offsets.Generation:
		g.stop(h, a.Claim.Owner, Cause{
			Code: "generation", Text: "the pipeline's scope, key rule, encoding or partition count is another than this configuration's",
			Fix: "run the configuration the pipeline was set to",
		}, &a.Claim)
	}
}

// fill answers for every partition; one that does not run is paused.
func (g *Group) fill(m map[string]map[int32]kgo.Offset) {
	g.mu.Lock()
	defer g.mu.Unlock()
	pause := map[string][]int32{}
	for topic, parts := range m {
		for n := range parts {
			h := g.held[Name{topic, n}]
			if h == nil { // dropped meanwhile: the session is over
				pause[topic] = append(pause[topic], n)
				parts[n] = kgo.NewOffset().At(0)
				continue
			}
			parts[n] = kgo.NewOffset().At(h.Claim.Next).WithEpoch(h.Claim.LeaderEpoch)
			if h.State != Running {
				pause[topic] = append(pause[topic], n)
				parts[n] = kgo.NewOffset().At(h.Claim.Next)
			}
		}
	}
	if g.client != nil {
		g.client.PauseFetchPartitions(pause)
	}
}

// dropped unregisters and drops queues, for both revoked and lost. It never waits:
// the transaction in flight finishes or is fenced.
func (g *Group) dropped(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	var owners []stream.UUID
	g.mu.Lock()
	for topic, parts := range m {
		for _, n := range parts {
			if h := g.held[Name{topic, n}]; h != nil {
				owners = append(owners, h.Claim.Owner)
				delete(g.held, h.Name)
			}
		}
	}
	g.mu.Unlock()
	for _, o := range owners {
		g.board.Drop(o)
	}
}

// move changes a held partition's state if it is still the one this caller saw.
func (g *Group) move(h *Held, from, to State, claim stream.Claim) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held[h.Name] != h || h.State != from || h.Claim.Owner != claim.Owner {
		return false
	}
	h.Claim = claim
	h.set(to, Cause{}, time.Now())
	return true
}

// wait puts a partition into the background. One that was stopped or dropped
// meanwhile stays so.
func (g *Group) wait(h *Held, c Cause, in time.Duration) {
	g.mu.Lock()
	ok := g.held[h.Name] == h && h.State != Stopped
	if ok {
		now := time.Now()
		h.set(Waiting, c, now)
		h.due = now.Add(in)
	}
	claim := h.Claim
	g.mu.Unlock()
	if ok {
		g.board.Tell(Event{Kind: "waiting", Name: h.Name, Claim: claim, Cause: c})
		g.poke()
	}
}

// stop stops a partition visibly: paused, without a queue. It acts only while the
// claim of this owner is the one held: what is known of an older claim says nothing
// about the next. found, if any, is what the claim is now known to be.
func (g *Group) stop(h *Held, owner stream.UUID, c Cause, found *stream.Claim) {
	g.mu.Lock()
	if g.held[h.Name] != h || h.Claim.Owner != owner {
		g.mu.Unlock()
		return
	}
	again := h.State == Stopped
	if found != nil {
		h.Claim = *found
	}
	claim := h.Claim
	if !again {
		h.set(Stopped, c, time.Now())
	}
	g.pause(h.Name)
	g.mu.Unlock()
	if !again {
		g.board.Drop(owner)
		g.board.Tell(Event{Kind: "stopped", Name: h.Name, Claim: claim, Cause: c})
	}
}

// pause holds the mutex with whoever saw that the claim is held: behind a revoke it
// would pause the next assignment, which nobody resumes.
func (g *Group) pause(n Name) {
	if g.client != nil {
		g.client.PauseFetchPartitions(map[string][]int32{n.Topic: {n.Number}})
	}
}

// Resume has a partition fetched again if it runs.
func (g *Group) Resume(n Name) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if h := g.held[n]; h != nil && h.State == Running && g.client != nil {
		g.client.ResumeFetchPartitions(map[string][]int32{n.Topic: {n.Number}})
	}
}

func (g *Group) kafka() *kgo.Client {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.client
}

func (g *Group) poke() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// byOwner finds a claim that is still held; nil when it was dropped or replaced.
func (g *Group) byOwner(owner stream.UUID) *Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.Claim.Owner == owner {
			return h
		}
	}
	return nil
}

// Stop stops the partition of this claim, as it stands now, visibly. A claim that is
// not held any more is left alone.
func (g *Group) Stop(claim stream.Claim, c Cause) {
	if h := g.byOwner(claim.Owner); h != nil {
		g.stop(h, claim.Owner, c, &claim)
	}
}

// Fenced gives up a claim that Postgres refused. If the assignment still stands
// the partition is taken over again under a new owner, after exponential waits;
// a member that is a zombie will hear from Kafka before. at once skips the first
// wait: the database went back and nobody else is known to hold the row.
func (g *Group) Fenced(ctx context.Context, owner stream.UUID, atOnce bool) {
	h, claim, n := g.giveUp(owner)
	if h == nil {
		return
	}
	g.board.Drop(owner)
	g.board.Tell(Event{Kind: "fenced", Name: h.Name, Claim: claim})
	if n > maxRetakes {
		g.stop(h, claim.Owner, Cause{
			Code: "held_elsewhere", Text: "fenced again and again though the assignment stands; held by " + g.holderOf(ctx, claim.Partition),
			Fix: "end the other process, then restart this member",
		}, nil)
		return
	}
	backoff := retakeWait << (n - 1)
	if atOnce && n == 1 {
		backoff = 0
	}
	g.wait(h, Cause{Code: "fenced", Text: "another claim was made; taking over again"}, backoff)
}

// giveUp replaces the owner of a running claim and counts how often that happened.
// The committer and the watch may both find a claim stale: only the first gives it
// up. A partition that was stopped stays so. When it is due the caller says.
func (g *Group) giveUp(owner stream.UUID) (*Held, stream.Claim, int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, h := range g.held {
		if h.Claim.Owner != owner || h.State != Running {
			continue
		}
		now := time.Now()
		if now.Sub(h.Since) > calm {
			h.retakes = 0
		}
		h.retakes++
		h.Claim.Owner = newOwner()
		h.set(Waiting, Cause{Code: "fenced"}, now)
		h.due = now.Add(time.Hour)
		g.pause(h.Name)
		return h, h.Claim, h.retakes
	}
	return nil, stream.Claim{}, 0
}

// holderOf asks who wrote the row last; an answer that does not come is said so.
func (g *Group) holderOf(ctx context.Context, p stream.Partition) string {
	ctx, cancel := context.WithTimeout(ctx, attempt)
	defer cancel()
	holder := "an unknown process"
	conn, err := g.cfg.Control.Acquire(ctx)
	if err != nil {
		return holder
	}
	defer conn.Release()
	_ = pgtx.Once(ctx, conn.Conn(), pgtx.DefaultSettings, // without an answer the holder stays unknown
		g.cfg.Offsets.Read(g.cfg.ID, []stream.Partition{p}, false, func(r offsets.Row) { holder = r.Holder }))
	return holder
}

// retakeWait is the first wait of a fenced member: about one heartbeat, so that a
// zombie learns from Kafka first.
const retakeWait = 3 * time.Second

// Held returns a copy of what is held, ordered by topic and number.
func (g *Group) Held() []Held {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Held, 0, len(g.held))
	for _, h := range g.held {
		out = append(out, *h)
	}
	slices.SortFunc(out, func(a, b Held) int { return a.Claim.Partition.Compare(b.Claim.Partition) })
	return out
}
