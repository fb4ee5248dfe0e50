package e2e

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"effectonce/internal/kafkatest"
	"effectonce/internal/pgtest"
)

const (
	// patience bounds every wait for something that must happen. It times nothing.
	patience = 60 * time.Second
	// look is the pause between two looks at a condition that nothing announces.
	look = 10 * time.Millisecond
)

// world is a topic on the real Kafka, a private place in the real Postgres, and
// the members that move one into the other.
type world struct {
	t          *testing.T
	db         *pgtest.DB
	dir        string
	topic      string
	group      string
	partitions int32
	effects    string // quoted and qualified
	stream     *stream
	truth      *truth
	members    []*member
	overtaken  float64 // more than 0: a batch met what another member had applied meanwhile

	// What a test may change before it starts members.
	key        string // a source, or coordinates
	scope      string
	session    time.Duration
	grace      time.Duration
	batch      int
	committers int
	columns    string // further columns of the mapping
	memory     int    // bytes for business keys, 0 is no bound
	upstream   string // host:port that members connect to, by way of their proxies; empty: the server itself
	direct     bool   // without proxies: the DSN has more than one host
	binary     func() (string, error)
	env        []string
	extra      string // further settings, whole lines
}

// effectColumns has no unique constraint on purpose: what proves that an effect
// happened once is the pipeline, not an index. The serial tells the order.
const effectColumns = `id bigint GENERATED ALWAYS AS IDENTITY, event_id text, account text, seq bigint, delta bigint, part int, off bigint`

func newWorld(t *testing.T, partitions int32, seed uint64) *world {
	t.Helper()
	return newWorldIn(t, pgtest.New(t), partitions, seed)
}

// newWorldIn is a world in a database that the test has chosen.
func newWorldIn(t *testing.T, db *pgtest.DB, partitions int32, seed uint64) *world {
	t.Helper()
	w := &world{
		t: t, db: db, dir: t.TempDir(), topic: kafkatest.Topic(t, partitions), partitions: partitions,
		key: "event_id", scope: "partition", session: 3 * time.Second, grace: 500 * time.Millisecond, batch: 250, binary: processor,
	}
	w.group = "g-" + w.topic
	w.effects = w.db.Table(t, "effects", effectColumns)
	w.stream, w.truth = newStream(t, w.topic, seed), newTruth(t, w.topic, partitions)
	t.Cleanup(w.forgetGroup)
	t.Cleanup(func() {
		for _, m := range w.members {
			m.end()
		}
		if t.Failed() {
			for _, m := range w.members {
				t.Logf("seed %d, %s ends with:\n%s", seed, m.name, m.tail(40))
			}
		}
	})
	return w
}

// forgetGroup removes the group; the broker is shared.
func (w *world) forgetGroup() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(w.t.Context()), 10*time.Second)
	defer cancel()
	_, _ = kadm.NewClient(w.stream.client).DeleteGroups(ctx, w.group) // a group that stays harms nobody
}

// postgres is the host:port of the server, or of what stands in front of it.
func (w *world) postgres() string {
	if w.upstream != "" {
		return w.upstream
	}
	c := w.db.Owner.Config().ConnConfig
	return net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
}

// dsn is the runtime role's address by way of the member's proxy.
func (w *world) dsn(m *member) string {
	if w.direct {
		return w.db.RuntimeDSN
	}
	u, err := url.Parse(w.db.RuntimeDSN)
	if err != nil {
		w.t.Fatal(err)
	}
	u.Host = m.proxy.Addr()
	return u.String()
}

func (w *world) settings(m *member) string {
	return fmt.Sprintf(`pipeline: ledger
kafka:
  brokers: [%q]
  topics: [%q]
  group: %q
  session_timeout: %s
  rebalance_timeout: 10s
  heartbeat_interval: 500ms
postgres:
  dsn: %q
  schema: %q
key: %s
scope: %s
sink:
  table:
    schema: %q
    name: effects
    columns: {event_id: event_id, account: account, seq: seq, delta: delta, part: "kafka:partition", off: "kafka:offset"%s}
batch: {max_records: %d}
committers: %d
takeover: {grace: %s}
dedup: {memory: %d}
admin: {listen: %q}
log: {format: json}
%s`, kafkatest.Broker(w.t), w.topic, w.group, w.session, w.dsn(m), w.db.Schema, w.key, w.scope, w.db.User, w.columns, w.batch, w.committers, w.grace, w.memory, m.admin, w.extra)
}

// await waits for a condition that nothing announces.
func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(look)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-tick.C:
		}
	}
}

// await is the same while no member ends that should not.
func (w *world) await(what string, condition func() bool) {
	w.t.Helper()
	await(w.t, what, func() bool {
		for _, m := range w.members {
			if m.cmd != nil && !m.ending && !m.running() {
				w.t.Fatalf("waiting for %s: %s ended by itself: %v", what, m.name, m.cmd.ProcessState)
			}
		}
		return condition()
	})
}

// number is one number of the database.
func (w *world) number(sql string, args ...any) int64 {
	w.t.Helper()
	var n int64
	if err := w.db.Owner.QueryRow(w.t.Context(), sql, args...).Scan(&n); err != nil {
		w.t.Fatalf("%s: %v", sql, err)
	}
	return n
}

// progress is the sum of the committed positions.
func (w *world) progress() int64 {
	w.t.Helper()
	return w.number("SELECT coalesce(sum(next_offset), 0) FROM " + w.db.Relation("positions"))
}

// produce has the stream write n records, and hurts the pipeline meanwhile.
func (w *world) produce(n int, meanwhile func()) {
	w.t.Helper()
	var eg errgroup.Group
	eg.Go(func() error { return w.stream.send(w.t.Context(), n) })
	if meanwhile != nil {
		meanwhile()
	}
	if err := eg.Wait(); err != nil {
		w.t.Fatal(err)
	}
}

var holderPid = regexp.MustCompile(`pid (\d+)$`)

// held counts the positions by the pid of who took them over last.
func (w *world) held() map[int]int {
	w.t.Helper()
	rows, err := w.db.Owner.Query(w.t.Context(), "SELECT holder FROM "+w.db.Relation("positions"))
	if err != nil {
		w.t.Fatal(err)
	}
	holders, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		w.t.Fatal(err)
	}
	held := map[int]int{}
	for _, h := range holders {
		pid := 0
		if m := holderPid.FindStringSubmatch(h); m != nil {
			pid, _ = strconv.Atoi(m[1]) // digits
		}
		held[pid]++
	}
	return held
}

// balanced waits until every running member holds partitions, and nobody else.
func (w *world) balanced() {
	w.t.Helper()
	w.await("every member to hold partitions", func() bool {
		held := w.held()
		for _, m := range w.members {
			if m.running() && held[m.pid()] == 0 {
				return false
			}
			if m.running() {
				delete(held, m.pid())
			}
		}
		return len(held) == 0
	})
}

// drained waits until the positions are at the ends of the topic.
func (w *world) drained() map[int32]int64 {
	w.t.Helper()
	ends, total := w.truth.ends(w.t), int64(0)
	for _, end := range ends {
		total += end
	}
	w.await("the positions to reach the end", func() bool { return w.progress() >= total })
	return ends
}

// facts reads everything the checker compares in one snapshot of the database.
func (w *world) facts(ends map[int32]int64) facts {
	t, ctx := w.t, w.t.Context()
	t.Helper()
	tx, err := w.db.Owner.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }() // it only read
	f := facts{keyed: w.key != "coordinates", whole: w.scope == "topic", ends: ends, positions: map[int32]position{}}
	if err := tx.QueryRow(ctx, "SELECT salt FROM "+w.db.Relation("pipelines")).Scan(&f.salt); err != nil {
		t.Fatal(err)
	}
	f.effects = collect(t, tx, func(r pgx.Rows) (e effect, err error) {
		err = r.Scan(&e.Event, &e.Account, &e.Seq, &e.Delta, &e.part, &e.offset)
		return e, err
	}, "SELECT event_id, account, seq, delta, part, off FROM "+w.effects+" ORDER BY id")
	f.runs = w.runs(tx)
	f.sealed = w.sealed(tx)
	for _, p := range collect(t, tx, func(r pgx.Rows) (p placed, err error) {
		err = r.Scan(&p.part, &p.next, &p.epoch, &p.owner)
		return p, err
	}, "SELECT partition, next_offset, epoch, coalesce(owner::text, '') FROM "+w.db.Relation("positions")) {
		f.positions[p.part] = p.position
	}
	f.letters = collect(t, tx, func(r pgx.Rows) (c coordinate, err error) {
		err = r.Scan(&c.part, &c.offset)
		return c, err
	}, `SELECT partition, "offset" FROM `+w.db.Relation("dead_letters"))
	return f
}

// runs are those of all logs, with one audit row a range.
func (w *world) runs(tx pgx.Tx) (runs []run) {
	w.t.Helper()
	for _, one := range collect(w.t, tx, func(r pgx.Rows) (x run, err error) {
		x.spans = make([]span, 1)
		s := &x.spans[0]
		err = r.Scan(&x.log, &x.seq, &s.part, &s.from, &s.to, &s.owner, &s.epoch, &s.read, &s.applied, &s.duplicate, &s.dead, &x.keys)
		return x, err
	}, fmt.Sprintf(`SELECT a.log, a.seq, a.partition, a.from_offset, a.to_offset, a.owner::text, a.epoch, a.read, a.applied,
		a.duplicate, a.dead, r.fingerprints FROM %s a JOIN %s r ON r.log = a.log AND r.seq = a.seq ORDER BY a.log, a.seq, a.partition`,
		w.db.Relation("audit"), w.db.Relation("runs"))) {
		if last := len(runs) - 1; last >= 0 && runs[last].log == one.log && runs[last].seq == one.seq {
			runs[last].spans = append(runs[last].spans, one.spans...)
			continue
		}
		runs = append(runs, one)
	}
	return runs
}

// sealed is what the segments of each log hold.
func (w *world) sealed(tx pgx.Tx) []sealed {
	w.t.Helper()
	return collect(w.t, tx, func(r pgx.Rows) (x sealed, err error) {
		var blocks []byte
		err = r.Scan(&x.log, &x.upTo, &blocks)
		x.keys = sorted(slices.Collect(slices.Chunk(blocks, 16)))
		return x, err
	}, fmt.Sprintf(`SELECT l.id, l.sealed, coalesce((SELECT string_agg(b.fingerprints, '')
		FROM %s s JOIN %s b ON b.segment = s.id WHERE s.log = l.id AND s.state = 'live'), '') FROM %s l`,
		w.db.Relation("segments"), w.db.Relation("blocks"), w.db.Relation("logs")))
}

type placed struct {
	position
	part int32
}

func collect[T any](t *testing.T, tx pgx.Tx, scan func(pgx.Rows) (T, error), sql string) []T {
	t.Helper()
	rows, err := tx.Query(t.Context(), sql)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	out, err := pgx.CollectRows(rows, func(pgx.CollectableRow) (T, error) { return scan(rows) })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return out
}

// findings asks the checker about a snapshot taken now: in the middle of work as
// far as the positions are, when drained up to the end.
func (w *world) findings(ends map[int32]int64) []finding {
	w.t.Helper()
	f := w.facts(ends)
	below := ends
	if below == nil {
		below = map[int32]int64{}
		for part, p := range f.positions {
			below[part] = p.next
		}
	}
	f.topic = w.truth.read(w.t, below)
	if ends == nil {
		f = f.upTo()
	}
	return check(f)
}

// exact asks the checker and fails the test for every finding.
func (w *world) exact(when string, ends map[int32]int64) {
	w.t.Helper()
	w.mustBe(when, w.findings(ends))
}

// mustBe fails the test for every finding.
func (w *world) mustBe(when string, found []finding) {
	w.t.Helper()
	for _, f := range found[:min(len(found), 20)] {
		w.t.Errorf("%s: %s", when, f)
	}
	if len(found) > 0 {
		w.t.Fatalf("%s: %d findings: %v", when, len(found), classes(found))
	}
}

func classes(found []finding) []string {
	var all []string
	for _, f := range found {
		all = append(all, f.class)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// others are the members but m, as text for messages.
func others(ms []*member, m *member) string {
	var names []string
	for _, o := range ms {
		if o != m {
			names = append(names, o.name)
		}
	}
	return strings.Join(names, ", ")
}
