package rebalance

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"effectonce/pkg/dedup"
	"effectonce/pkg/offsets"
	"effectonce/pkg/stream"
)

// Config is what a Group needs to know.
type Config struct {
	Pipeline  string
	Group     string
	ID        int64            // of the pipeline's row
	Topics    map[string]Topic // by name, as found at start
	Grows     bool             // new partitions are simply added: no scope rests on their count
	Holder    string           // host and pid, written beside the owner
	Sessions  string           // prefix of application_name: backends that a takeover may end
	Grace     time.Duration    // how long a takeover waits before it ends our own stuck backends
	Static    bool             // it has an instance id, and keeps its place when it ends
	Heartbeat time.Duration    // first wait of a fenced member, so that a zombie hears from Kafka first
	OnReset   string           // warn, honour or fail: the group's offset was moved by hand
	Keyless   bool             // no business key: only the position knows what was applied
	Retention time.Duration    // how long keys are known; 0: for ever
	Offsets   *offsets.Store
	Log       *dedup.Store
	Control   *pgxpool.Pool // its own connections: a committer behind a zombie never starves the takeover

	OnOutOfRange string // Halt or AcceptLoss: the position lies outside the log
	OnTruncated  string // Halt or Rewind: the log was cut below the position
	ByOffset     bool   // records without a key are known by their offsets: no policy goes back to offsets that other records had
}

// Board is the side of the processor: queues and the poll goroutine.
type Board struct {
	Open     func(stream.Claim)           // the claim is ours: open its queue
	Drop     func(owner stream.UUID)      // it is not any more: drop its queue; never waits
	HandOver func(owner stream.UUID)      // the group took the partition away: go on until the next owner takes over; never waits
	Ask      func(onPollGoroutine func()) // between hand-off and AllowRebalance
	Tell     func(Event)                  // for log and metrics
}

// Event is something people want to see.
type Event struct {
	Kind     string // takeover, waiting, stopped, decided, accepted_loss, fenced, released, ended_backend, external_reset, retry; joined, session_failed: of no partition
	Name     Name
	Claim    stream.Claim
	Cause    Cause
	Protocol string // joined: the one in force
	Err      error
}

// Group is this process's membership. Its methods are the client's callbacks.
type Group struct {
	cfg       Config
	board     Board
	wake      chan struct{} // the background has something to do
	abort     func()        // ends what the client waits for, for good; set with its options
	still     chan struct{} // something stands still, or runs again
	unstamped chan struct{} // there are positions for the group's offset to follow

	mu      sync.Mutex // guards what follows
	client  *kgo.Client
	topics  map[string]Topic
	held    map[Name]*Held
	mirrors map[Name]mirror
	ran     map[stream.Partition]stream.Claim // claims that run, which what was written about stops does not know yet
	session Session
	joining bool   // a JoinGroup is under way
	chosen  string // protocol of the session that begins
}

// New returns a group without partitions.
func New(cfg Config, board Board) *Group {
	return &Group{
		cfg: cfg, board: board, topics: cfg.Topics,
		wake: make(chan struct{}, 1), still: make(chan struct{}, 1), unstamped: make(chan struct{}, 1),
		held: map[Name]*Held{}, mirrors: map[Name]mirror{}, ran: map[stream.Partition]stream.Claim{}, session: Session{Beat: time.Now()},
	}
}

// Options are the client options this package owns. ctx lives as long as the client
// and is not the signal's: a client whose context ends cannot leave the group.
func (g *Group) Options(ctx context.Context) []kgo.Opt {
	ctx, g.abort = context.WithCancel(ctx)
	return []kgo.Opt{
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // never used: Adjust names every offset
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),       // no library default decides
		kgo.OnPartitionsAssigned(g.assigned), kgo.OnOffsetsFetched(g.fetched), kgo.AdjustFetchOffsetsFn(g.adjust),
		kgo.OnPartitionsRevoked(g.dropped), kgo.OnPartitionsLost(g.dropped),
		kgo.AutoCommitMarks(),
		kgo.WithHooks(pulse{g}),
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
	g.joined()
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
			if h.State == Waiting { // the group says anew that it is ours: as good as a heartbeat
				h.due, h.proof = time.Now(), time.Time{}
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
		m := g.mirrored(h.Name)
		if cause, stop := m.ahead(h.Name, a); stop {
			g.stop(h, a.Claim.Owner, cause, &a.Claim)
			return
		}
		if m.foreign() {
			g.locate(h, a.Claim)
			g.wait(h, foreignCause(m), 0)
			return
		}
		if g.move(h, Taking, Running, a.Claim) {
			g.trails(h, a.Claim.Owner, a.Claim.Next)
			g.board.Open(a.Claim)
			g.board.Tell(Event{Kind: "takeover", Name: h.Name, Claim: a.Claim})
		}
	case offsets.Locked:
		g.locate(h, a.Claim)
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
			Fix: "run the configuration the pipeline was set to, or set it to this one with processor pipeline migrate",
		}, &a.Claim)
	}
}

// locate notes where a partition stands that is not open yet.
func (g *Group) locate(h *Held, at stream.Claim) {
	g.mu.Lock()
	defer g.mu.Unlock()
	h.Claim.Next, h.Claim.LeaderEpoch = at.Next, at.LeaderEpoch
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

// dropped unregisters and hands queues over, for both revoked and lost. It never
// waits: what they still commit finishes or is fenced.
func (g *Group) dropped(_ context.Context, _ *kgo.Client, m map[string][]int32) {
	var dropped []Held
	g.mu.Lock()
	for topic, parts := range m {
		for _, n := range parts {
			if h := g.held[Name{topic, n}]; h != nil {
				dropped = append(dropped, *h)
				delete(g.held, h.Name)
			}
		}
	}
	g.mu.Unlock()
	for _, h := range dropped {
		g.board.HandOver(h.Claim.Owner)
		g.board.Tell(Event{Kind: "released", Name: h.Name, Claim: h.Claim})
	}
}
