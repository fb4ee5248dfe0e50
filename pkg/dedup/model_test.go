package dedup

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// TestModel plays random histories on real Postgres schemas against a plain map:
// members that take a partition from each other, batches prepared and committed
// later, seals and compactions that are killed at any message or swapped in long
// after they were built, clean-up, rebuilds, dead processes, changes of generation,
// and a database that goes back. At the end every key of the source was applied once,
// by its first record.
//
// EFFECTONCE_DEDUP_SEED plays one history again, EFFECTONCE_DEDUP_SEEDS is how many
// are played otherwise.
func TestModel(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, seed uint64) {
		s := &story{world: newWorld(t, 1), rng: fixed(seed, 1), source: make([][]int, 1)}
		for range 3 {
			s.members = append(s.members, &member{})
		}
		s.play()
	})
}

// histories plays as many as the environment asks for.
func histories(t *testing.T, play func(t *testing.T, seed uint64)) {
	t.Helper()
	seeds := []uint64{}
	if text := os.Getenv("EFFECTONCE_DEDUP_SEED"); text != "" {
		seeds = append(seeds, number(t, text))
	} else {
		n := uint64(12)
		if text := os.Getenv("EFFECTONCE_DEDUP_SEEDS"); text != "" {
			n = number(t, text)
		}
		for first := rand.Uint64N(1 << 40); n > 0; n-- { // printed, and played again by the variable
			seeds = append(seeds, first+n)
		}
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprintf("EFFECTONCE_DEDUP_SEED=%d", seed), func(t *testing.T) {
			t.Parallel()
			play(t, seed)
		})
	}
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// story is one history.
type story struct {
	*world
	*ageing // nil: nothing expires

	rng     *rand.Rand
	second  *pgx.Conn
	scope   int32   // of the log: partition 0, or WholeTopic
	source  [][]int // lane → record → key
	members []*member
	back    func() // sets the database back; nil before the first backup
	done    map[string]int
}

// member is a process with a view of the log.
type member struct {
	lane     int // whose records it applies: in scope topic each member has its own
	v, old   *View
	pos      int
	prepared *batchOf
	built    *swap // a segment that is not swapped in yet
}

// batchOf is a batch between its check and its commit.
type batchOf struct {
	from, to int
	picks    []int64 // records to apply
	run      []byte
	keys     []int64 // of the picks
	retry    bool    // a retried dead letter: its key, and no position
	v        *View
	fold     *Fold
	won      map[int]bool // of its records, those to apply
	head     [16]byte
}

// noRecord is the record of an effect that a retry applied.
const noRecord = -1

const (
	records  = 260
	universe = 120
	steps    = 170
)

func (s *story) play() {
	s.t.Helper()
	s.done = map[string]int{}
	s.store.sizes = tiny
	if s.rng.IntN(2) == 0 {
		s.store.sizes.alone = 50 * time.Millisecond
	}
	s.store = s.store.Cached(s.liar())
	s.Table(s.t, "position", "lane int, n bigint")
	s.Table(s.t, "effects", "key bigint, lane int, record bigint, at timestamptz, progress timestamptz, id bigserial")
	s.age()
	for lane := range s.source {
		s.Exec(s.t, "INSERT INTO position VALUES ($1, 0)", lane)
		for range records {
			s.source[lane] = append(s.source[lane], s.rng.IntN(universe))
		}
	}
	for range steps {
		s.step()
		if s.t.Failed() {
			s.t.Fatalf("after %v", s.done)
		}
	}
	lanes := s.members[:len(s.source)]
	for tries := 0; slices.ContainsFunc(lanes, func(m *member) bool { return s.position(m.lane) < records }); tries++ {
		for _, m := range lanes {
			s.prepare(m)
		}
		for _, m := range lanes {
			s.commit(m)
		}
		if tries > 20*records {
			s.t.Fatal("stuck")
		}
	}
	s.finish()
	s.t.Log(s.done)
}

// step is one random thing.
func (s *story) step() {
	m := s.members[s.rng.IntN(len(s.members))]
	type choice struct {
		weight int
		name   string
		do     func(*member)
	}
	choices := []choice{
		{20, "prepare", s.prepare}, {20, "commit", s.commit},
		{8, "batch", func(m *member) { s.prepare(m); s.commit(m) }},
		{8, "retry", s.retry},
		{8, "seal", func(m *member) { s.task(m, s.sealing) }},
		{5, "build", s.build}, {5, "swap", s.swapIn},
		{6, "compact", func(m *member) { s.task(m, s.compacting) }},
		{6, "expire", func(m *member) { s.task(m, s.expiring) }},
		{5, "rebuild", func(m *member) { s.view(m).ungate(); s.task(m, s.rebuilding) }},
		{5, "offer", func(m *member) { s.task(m, s.offering) }},
		{5, "cache", func(m *member) { s.task(m, s.caching) }},
		{6, "clean", func(m *member) { s.task(m, s.cleaning) }},
		{3, "dies", func(m *member) { *m = member{lane: m.lane} }},
		{2, "reload", func(m *member) { s.view(m); s.drop(m) }},
		{3, "old view", s.haunt},
		{2, "backup", func(*member) { s.keep() }},
		{3, "goes back", func(*member) {
			if s.back != nil {
				s.back()
			}
		}},
		{3, "checks", s.checks},
		{2, "change", func(*member) { s.renew() }},
	}
	total := 0
	for _, c := range choices {
		total += c.weight
	}
	at := s.rng.IntN(total)
	for _, c := range choices {
		if at -= c.weight; at < 0 {
			s.done[c.name]++
			c.do(m)
			return
		}
	}
}

// view returns the member's view, loaded if it has none, with what its last one
// knew. A position known from before a failover is read again when the fence refuses
// it.
func (s *story) view(m *member) *View {
	s.t.Helper()
	if m.v == nil {
		m.pos = s.position(m.lane)
		v, err := s.store.Load(s.t.Context(), s.conn, patient, s.id, s.part(s.number()), m.old)
		if err != nil {
			s.t.Fatal(err)
		}
		if v.gate != nil {
			s.done["inherited"]++
		} else if v.base != nil {
			s.done["inherited in part"]++
		}
		m.v = v
	}
	return m.v
}

func (s *story) drop(m *member) { m.old, m.v, m.prepared, m.built = m.v, nil, nil, nil }

// haunt has something still work on a view that was dropped.
func (s *story) haunt(m *member) {
	if m.old == nil {
		return
	}
	for _, do := range []func(*pgx.Conn, *View) error{s.sealing, s.compacting, s.rebuilding, s.offering} {
		if s.rng.IntN(4) > 0 {
			continue
		}
		if err := do(s.conn, m.old); err != nil && !errors.Is(err, ErrDropView) && !errors.Is(err, ErrBusy) && pgtx.Code(err) != pgtx.CodeSegment {
			s.t.Errorf("on an old view: %v", err)
		}
	}
}

// number is that of the open log: a change may have made it a whole topic's.
func (s *story) number() int32 {
	s.t.Helper()
	var n int32
	if err := s.Owner.QueryRow(s.t.Context(), "SELECT coalesce(partition, -1) FROM "+s.Relation("logs")+" WHERE state = 'open'").Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// renew gives the topic another generation with all of its keys: in the same scope, or
// widened. No member is told.
func (s *story) renew() {
	scope := stream.ScopeTopic
	if s.number() == 0 && s.rng.IntN(2) == 0 {
		scope = stream.ScopePartition
	}
	if _, err := s.changeOn(s.conn, scope, 1, true); err != nil {
		s.t.Errorf("change: %v", err)
	}
}

func (s *story) position(lane int) int {
	s.t.Helper()
	var n int
	if err := s.Owner.QueryRow(s.t.Context(), "SELECT n FROM position WHERE lane = $1", lane).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}

// doubt is what a member does when the log is not as it thought: catch up, and if
// that proves nothing, load.
func (s *story) doubt(m *member) {
	s.t.Helper()
	m.prepared = nil
	if err := s.catchUp(m.v, s.number()); errors.Is(err, ErrDropView) {
		s.drop(m)
	} else if err != nil {
		s.t.Error(err)
	}
}

// prepare is everything before BEGIN.
func (s *story) prepare(m *member) {
	v := s.view(m)
	b := &batchOf{from: m.pos, to: min(m.pos+1+s.rng.IntN(9), records), v: v, head: v.HeadID}
	if b.from < b.to {
		s.check(m, b, s.source[m.lane][b.from:b.to])
	}
}

// retry prepares a single key, as the retry of a dead letter does: it has no
// position, so nothing but the log's head stands between it and another writer.
func (s *story) retry(m *member) {
	v := s.view(m)
	s.check(m, &batchOf{retry: true, v: v, head: v.HeadID}, []int{s.rng.IntN(universe)})
}

// check asks for a batch's keys.
func (s *story) check(m *member, b *batchOf, keys []int) {
	v, f := b.v, &Fold{}
	b.fold = f
	f.Reset(0)
	for _, k := range keys {
		f.Add(fpOf(k))
	}
	if f.Check(v) > 0 {
		switch s.rng.IntN(8) { // the view's own background comes in between
		case 0:
			s.task(m, s.sealing)
		case 1:
			s.task(m, s.compacting)
		case 2:
			s.task(m, s.expiring)
		}
		if m.v != v {
			return
		}
		conn := s.conn
		if s.rng.IntN(8) == 0 {
			conn, _ = s.cut(1, s.rng.IntN(2) == 0)
		}
		if err := s.store.LookUp(s.t.Context(), conn, patient, f); err != nil {
			return
		}
		if f.Open() {
			s.done["other manifest"]++
			s.doubt(m)
			return
		}
	}
	b.won = map[int]bool{}
	for _, i := range f.Winners(nil, 0, len(keys), func(int) bool { return false }, nil) {
		b.keys, b.picks = append(b.keys, int64(keys[i])), append(b.picks, int64(b.from+i))
		b.won[i] = true
	}
	b.run = f.Run(func(i int) bool { return b.won[i] })
	m.prepared = b
}

// commit is the transaction: fence, effect, run. It may be killed anywhere in it.
func (s *story) commit(m *member) {
	b := m.prepared
	m.prepared = nil
	hold := s.scope == WholeTopic && s.rng.IntN(4) > 0
	if b == nil || b.v != m.v || b.head != m.v.HeadID && !hold {
		return
	}
	conn := s.conn
	if s.rng.IntN(6) == 0 {
		conn, _ = s.cut(int64(1+s.rng.IntN(2)), s.rng.IntN(2) == 0)
	}
	pid := conn.PgConn().PID()
	r := Run{View: m.v, ID: stream.NewUUID(), Fingerprints: b.run, Newest: s.sent(b)}
	err := s.transaction(conn, m, b, r, hold)
	if conn != s.conn {
		s.gone(pid)
	}
	switch {
	case err == nil:
		m.v.Learn(r.ID, b.run)
		if !b.retry {
			m.pos = b.to
		}
	case errors.Is(err, errOvertaken):
		s.done["overtaken"]++ // what was learned is learned: the next batch knows
	case errors.Is(err, errFenced), errors.Is(err, pgtx.ErrCommitUnknown), pgtx.Code(err) == "" && !errors.Is(err, ErrDropView):
		// The position says what happened; the log is caught up from the table.
		s.done["fenced or unknown"]++
		s.doubt(m)
		m.pos = s.position(m.lane)
	case pgtx.Code(err) == pgtx.CodeLogMoved:
		s.done["log moved"]++
		s.doubt(m)
	case pgtx.Code(err) == pgtx.CodeLogClosed:
		s.done["log closed"]++
		s.doubt(m)
	case errors.Is(err, ErrDropView):
		s.done["held, and not proven"]++
		s.drop(m)
	default:
		s.t.Errorf("commit: %v", err)
	}
}

var (
	errFenced    = errors.New("fenced")
	errOvertaken = errors.New("overtaken")
)

func (s *story) transaction(conn *pgx.Conn, m *member, b *batchOf, r Run, hold bool) error {
	var xact string
	user := func(table string) string { return pgx.Identifier{s.User, table}.Sanitize() }
	if b.retry {
		b.picks = make([]int64, len(b.keys))
		for i := range b.picks {
			b.picks[i] = noRecord
		}
	}
	fence := pgtx.Statement{
		Step: pgtx.StepFence, SQL: "UPDATE " + user("position") + " SET n = $2 WHERE n = $1 AND lane = $3 RETURNING pg_current_xact_id()::text",
		Params: []pgtx.Param{pgtx.Int8(int64(b.from)), pgtx.Int8(int64(b.to)), pgtx.Int4(int32(m.lane))},
		Row:    func(r pgtx.Row) error { return r.Scan(&xact) },
	}
	if b.retry {
		fence.SQL, fence.Params = "SELECT pg_current_xact_id()::text", nil
	}
	tx, err := pgtx.Begin(s.t.Context(), conn, patient, fence)
	if err != nil {
		return err
	}
	if xact == "" {
		tx.Rollback(s.t.Context())
		return errFenced
	}
	effect := pgtx.Statement{
		Step: pgtx.StepEffect, SQL: "INSERT INTO " + user("effects") + " SELECT k, $3, r FROM unnest($1, $2) AS u (k, r)",
		Params: []pgtx.Param{pgtx.Int8s(b.keys), pgtx.Int8s(b.picks), pgtx.Int4(int32(m.lane))},
	}
	effects := append([]pgtx.Statement{effect}, s.aging(b, r.Newest)...)
	if !hold {
		return tx.Commit(s.t.Context(), append(effects, s.store.Append(xact, []Run{r}))...)
	}
	if err := s.held(tx, m, b, effects); err != nil {
		tx.Rollback(s.t.Context())
		return err
	}
	return tx.Commit(s.t.Context(), s.store.Append(xact, []Run{r}))
}

// task runs something in the background of a member, mostly on a connection that
// dies somewhere.
func (s *story) task(m *member, do func(*pgx.Conn, *View) error) {
	v := s.view(m)
	conn := s.conn
	if s.rng.IntN(2) == 0 {
		conn, _ = s.cut(int64(1+s.rng.IntN(12)), s.rng.IntN(2) == 0)
	}
	pid := conn.PgConn().PID()
	err := do(conn, v)
	if conn != s.conn {
		_ = conn.Close(s.t.Context()) // it may be cut already
		s.gone(pid)
	}
	switch {
	case errors.Is(err, ErrDropView):
		s.done["drop view"]++
		s.doubt(m)
	case errors.Is(err, ErrBusy):
		s.done["busy"]++
	case err != nil && conn == s.conn:
		s.t.Errorf("background: %v", err)
	}
}

func (s *story) sealing(conn *pgx.Conn, v *View) error {
	_, err := s.store.Seal(s.t.Context(), conn, patient, v)
	return err
}

func (s *story) compacting(conn *pgx.Conn, v *View) error {
	n, err := s.store.Compact(s.t.Context(), conn, patient, v, s.windows())
	s.done["merged"] += n
	return err
}

func (s *story) rebuilding(conn *pgx.Conn, v *View) error {
	return s.store.Rebuild(s.t.Context(), conn, patient, v, nil)
}

func (s *story) offering(conn *pgx.Conn, v *View) error {
	return s.store.Offer(s.t.Context(), conn, patient, v)
}

// liar is a cache that answers one question of three with no image, with another
// one, or with one that lacks a bit.
func (s *story) liar() Cache {
	c := newShelf()
	c.load = func(_ stream.UUID, image []byte) ([]byte, error) {
		switch s.rng.IntN(9) {
		case 0:
			return nil, nil
		case 1:
			for _, other := range c.images {
				return bytes.Clone(other), nil
			}
		case 2:
			if len(image) > imageHeader {
				image[imageHeader+s.rng.IntN(len(image)-imageHeader)] = 0
			}
		}
		return image, nil
	}
	return c
}

// caching holds some segments whole, and lets go of others.
func (s *story) caching(conn *pgx.Conn, v *View) error {
	for _, seg := range v.live() {
		if s.rng.IntN(2) == 0 {
			heat(v, seg)
		}
	}
	err := s.store.ReadWhole(s.t.Context(), conn, patient, v, s.rng.Int64N(4000))
	s.done["whole"] += heldOf(v)
	return err
}

func (s *story) cleaning(conn *pgx.Conn, v *View) error {
	if _, err := s.store.Clean(s.t.Context(), conn, patient, v.Log); err != nil {
		return err
	}
	_, err := s.store.Prune(s.t.Context(), conn, patient, v.Log, 0)
	return err
}

// build writes a segment whose swap comes later, or never.
func (s *story) build(m *member) {
	v := s.view(m)
	if err := s.store.settle(s.t.Context(), s.conn, patient, v); err != nil {
		s.doubt(m)
		return
	}
	g := v.freeze()
	if g == nil || g.keys.n == 0 {
		return
	}
	seg, err := s.store.write(s.t.Context(), s.conn, patient, v, g.keys.sorted(), g.head)
	if errors.Is(err, ErrBusy) {
		return
	}
	if errors.Is(err, ErrDropView) {
		s.doubt(m)
		return
	}
	if err != nil {
		s.t.Error(err)
		return
	}
	v.cover(g.keys.sorted())
	m.built = &swap{segment: seg, gen: g}
}

// swapIn ends what build began. The generation may have been sealed otherwise
// meanwhile.
func (s *story) swapIn(m *member) {
	p := m.built
	m.built = nil
	if p == nil || m.v == nil || m.v.sealing != p.gen || m.v.pending != nil {
		return
	}
	m.v.cover(p.gen.keys.sorted())
	err := s.store.swap(s.t.Context(), s.conn, patient, m.v, p)
	switch {
	case errors.Is(err, ErrDropView):
		s.done["swap refused"]++
		s.doubt(m)
	case pgtx.Code(err) == pgtx.CodeSegment:
		s.done["segment incomplete"]++
	case err != nil:
		s.t.Errorf("swap: %v", err)
	}
}

// keep is a copy of everything, which the database may go back to.
func (s *story) keep() {
	logs := s.backup()
	for _, table := range []string{"position", "effects"} {
		s.Exec(s.t, "DROP TABLE IF EXISTS aside_"+table)
		s.Exec(s.t, "CREATE TABLE aside_"+table+" AS TABLE "+table)
	}
	s.Exec(s.t, "DROP TABLE IF EXISTS "+s.Relation("aside_positions"))
	s.Exec(s.t, "CREATE TABLE "+s.Relation("aside_positions")+" AS TABLE "+s.Relation("positions"))
	s.back = func() {
		logs()
		s.Exec(s.t, "DELETE FROM effects")
		s.Exec(s.t, "INSERT INTO effects TABLE aside_effects")
		s.Exec(s.t, "UPDATE position p SET n = a.n FROM aside_position a WHERE a.lane = p.lane")
		s.Exec(s.t, "UPDATE "+s.Relation("positions")+` p SET last_record_time = a.last_record_time, progress = a.progress
			FROM `+s.Relation("aside_positions")+" a")
	}
}

// checks compares a member that is up to date with the map of what is applied.
func (s *story) checks(m *member) {
	v := s.view(m)
	if err := s.catchUp(v, s.number()); errors.Is(err, ErrDropView) {
		s.drop(m)
		v = s.view(m)
	} else if err != nil {
		s.t.Fatal(err)
	}
	s.knows(v, universe, s.remembered())
}

// applied is the keys of the effects, each once or, when it may have expired
// meanwhile, again.
func (s *story) applied() map[int]bool {
	s.t.Helper()
	first := make([]map[int]int, len(s.source)) // of each lane, key → record
	for lane := range s.source {
		first[lane] = map[int]int{}
		for i, k := range s.source[lane] {
			if _, ok := first[lane][k]; !ok {
				first[lane][k] = i
			}
		}
	}
	rows, err := s.Owner.Query(s.t.Context(), "SELECT key, lane, record, at, progress FROM effects ORDER BY id")
	if err != nil {
		s.t.Fatal(err)
	}
	out := map[int]bool{}
	var key, lane, record int
	var at, progress *time.Time
	latest := map[int]*time.Time{}
	if _, err := pgx.ForEachRow(rows, []any{&key, &lane, &record, &at, &progress}, func() error {
		if out[key] && !s.mayForget(latest[key], progress) {
			s.t.Errorf("DOUBLED: key %d", key)
		}
		latest[key] = at
		if record != noRecord && first[lane][key] != record && !out[key] {
			s.t.Errorf("ORDER: key %d by record %d of lane %d, not %d", key, record, lane, first[lane][key])
		}
		out[key] = true
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	for lane := range first {
		position := s.position(lane)
		for k, i := range first[lane] {
			if i < position && !out[k] {
				s.t.Errorf("LOST: key %d of record %d of lane %d", k, i, lane)
			}
		}
	}
	return out
}

// finish ends a history: everything is applied, all that is not needed goes, and
// whoever looks finds the same.
func (s *story) finish() {
	v := s.load(s.number())
	s.store.sizes.alone = 0
	s.seal(v)
	if err := s.expiring(s.conn, v); err != nil {
		s.t.Error(err)
	}
	want := s.remembered()
	s.tidy(v)
	s.knows(v, universe, want)
	s.knows(s.load(s.number()), universe, want)
	for _, m := range s.members {
		if m.v != nil {
			s.checks(m)
		}
	}
}
