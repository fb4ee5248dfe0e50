package dedup

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"effectonce/pkg/stream"
)

// sqlLog is a topic "orders" of a pipeline "p" with two partitions, so two logs.
type sqlLog struct {
	*asked
	pipeline int64
	logs     [2]int64
	runs     [2]int64
}

func newSQLLog(t *testing.T) *sqlLog {
	t.Helper()
	l := &sqlLog{asked: newAsked(t)}
	l.scan(&l.pipeline, `INSERT INTO @.pipelines (name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ('p', $1, '\x01', 'p', 'c', 1) RETURNING id`, make([]byte, 16))
	l.exec(`INSERT INTO @.topics (pipeline, topic_id, name, partitions, scope, start, generation)
		VALUES ($1, $2, 'orders', 2, 'partition', 'earliest', '\x01'), ($1, $3, 'others', 1, 'partition', 'earliest', '\x01')`,
		l.pipeline, stream.UUID{1}, stream.UUID{2})
	for i := range l.logs {
		l.scan(&l.logs[i], `INSERT INTO @.logs (pipeline, topic_id, partition, generation) VALUES ($1, $2, $3, '\x01') RETURNING id`,
			l.pipeline, stream.UUID{1}, i)
	}
	return l
}

func (l *sqlLog) scan(dest any, sql string, args ...any) {
	l.t.Helper()
	if err := l.conn.QueryRow(l.t.Context(), l.name(sql), args...).Scan(dest); err != nil {
		l.t.Fatalf("%s: %v", sql, err)
	}
}

// run appends a run of these bytes to a log.
func (l *sqlLog) run(log int, fingerprints []byte) {
	l.t.Helper()
	l.runs[log]++
	l.exec(`INSERT INTO @.runs (log, seq, run_id, ranges, fingerprints) VALUES ($1, $2, gen_random_uuid(), '{}', $3)`,
		l.logs[log], l.runs[log], fingerprints)
	l.exec(`UPDATE @.logs SET head = $2 WHERE id = $1`, l.logs[log], l.runs[log])
}

// segment writes sorted fingerprints as a segment with blocks of size keys.
func (l *sqlLog) segment(log int, state string, size int, fps []Fingerprint) {
	l.t.Helper()
	id := stream.NewUUID()
	l.exec(`INSERT INTO @.segments (id, log, state, tier, keys, blocks, first_run, last_run) VALUES ($1, $2, $3, 0, $4, 1, 1, 1)`,
		id, l.logs[log], state, len(fps))
	var rows [][]any
	for block := range slices.Chunk(fps, size) {
		rows = append(rows, []any{id, block[0][:], flat(block)})
	}
	_, err := l.conn.CopyFrom(l.t.Context(), pgx.Identifier{l.db.Schema, "blocks"}, []string{"segment", "first", "fingerprints"}, pgx.CopyFromRows(rows))
	if err != nil {
		l.t.Fatal(err)
	}
}

func flat(fps []Fingerprint) []byte {
	var b []byte
	for _, f := range fps {
		b = append(b, f[:]...)
	}
	return b
}

func (l *sqlLog) seen(sql string, args ...any) bool {
	l.t.Helper()
	var got bool
	l.scan(&got, "SELECT @.seen('p', 'orders', "+sql+")", args...)
	return got
}

func (l *sqlLog) seenFingerprint(f Fingerprint) bool {
	l.t.Helper()
	var got bool
	l.scan(&got, "SELECT @.seen_fingerprint('p', 'orders', $1)", f[:])
	return got
}

func textKey(t *testing.T, s string) Fingerprint {
	t.Helper()
	f, err := NewHasher([16]byte{}).Key(stream.Value{Kind: stream.Text, Data: []byte(s)})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func randomFingerprints(rng *rand.Rand, n int) []Fingerprint {
	fps := make([]Fingerprint, n)
	for i := range fps {
		for j := range fps[i] {
			fps[i][j] = byte(rng.IntN(256))
		}
	}
	slices.SortFunc(fps, Fingerprint.Compare)
	return slices.Compact(fps)
}

// A key is seen from the commit of its run on, through sealing, until its segment
// is dropped; in whatever partition it came.
func TestSQLSeen(t *testing.T) {
	t.Parallel()
	l := newSQLLog(t)
	key := textKey(t, "A-17")
	look := func(want bool, when string) {
		t.Helper()
		if got := l.seen("'A-17'"); got != want {
			t.Errorf("%s: %v", when, got)
		}
		if l.seen("'A-18'") || l.seen(`'\x412d3137'::bytea`) || l.seen("17") || l.seen("true") {
			t.Errorf("%s: another key is seen", when)
		}
	}
	look(false, "before anything")
	l.run(1, nil)
	l.run(1, []byte{})
	look(false, "runs without keys")
	l.run(1, flat(slices.SortedFunc(slices.Values([]Fingerprint{key, {}, {0: 255}}), Fingerprint.Compare)))
	look(true, "a run")

	// A sealed run's fingerprints wait for clean-up: its segment speaks for them.
	l.exec("UPDATE @.logs SET sealed = head WHERE id = $1", l.logs[1])
	look(false, "sealed, and the segment expired")
	l.segment(1, "building", 250, []Fingerprint{key})
	l.segment(1, "dead", 250, []Fingerprint{key})
	look(false, "segments that do not count")
	l.segment(1, "live", 250, []Fingerprint{{}, key, {0: 255}})
	look(true, "a segment")
	l.exec("UPDATE @.logs SET state = 'closed' WHERE id = $1", l.logs[1])
	look(false, "the log is closed")
	l.exec("UPDATE @.logs SET state = 'open' WHERE id = $1", l.logs[1])
	l.exec("UPDATE @.topics SET name = 'renamed' WHERE name = 'orders'")
	l.exec("UPDATE @.topics SET name = 'orders' WHERE name = 'others'")
	look(false, "another topic's log")
	l.exec("UPDATE @.topics SET name = 'orders' WHERE name = 'renamed'")
	look(true, "a topic that was made again under its name")
}

// TestSQLSeenKinds: each spelling of a key asks for that key.
func TestSQLSeenKinds(t *testing.T) {
	t.Parallel()
	l := newSQLLog(t)
	for _, sql := range []string{
		"'ab'", "42", "1.50", `'\x00ff'::bytea`, "true", `json '["a",1]'`, "@.part('a'), @.part(2)", "@.part(chr(223))",
	} {
		if l.seen(sql) {
			t.Errorf("%s is seen before", sql)
		}
		fp, err := l.fingerprint("'p', " + sql)
		if err != nil {
			t.Fatal(err)
		}
		l.run(0, fp)
		if !l.seen(sql) {
			t.Errorf("%s is not seen", sql)
		}
	}
	if !l.seen("'42'::numeric") || !l.seen("@.part('a'), @.part(1)") || l.seen("'42'") {
		t.Error("another spelling of a key")
	}
	var null *bool
	for _, sql := range []string{"NULL::text", "json 'null'", "@.part(NULL::text)"} {
		if l.scan(&null, "SELECT @.seen('p', 'orders', "+sql+")"); null != nil {
			t.Errorf("%s: %v", sql, *null)
		}
	}
	for _, sql := range []string{
		"seen('p', 'order', 'ab')", "seen('q', 'orders', 'ab')", "seen('p', NULL, 'ab')", "seen('p', 'order', NULL::text)",
		`seen_fingerprint('p', 'orders', '\x00')`, `seen_fingerprint('p', 'orders', '')`,
	} {
		if _, err := l.conn.Exec(t.Context(), l.name("SELECT @."+sql)); sqlState(err) != "22023" {
			t.Errorf("%s: %v", sql, err)
		}
	}
}

// A fingerprint's bytes also stand across two others: that is no hit. They may
// stand there first and then truly.
func TestSQLSeenIsAligned(t *testing.T) {
	t.Parallel()
	for shift := 1; shift < 16; shift++ {
		t.Run(fmt.Sprint(shift), func(t *testing.T) {
			t.Parallel()
			l := newSQLLog(t)
			key := textKey(t, "A-17")
			// around holds the key's bytes from shift on, in the order of a run.
			around := append(make([]byte, shift), key[:]...)
			around = append(around, slices.Repeat([]byte{255}, 16-shift)...)
			l.run(0, around)
			l.segment(0, "live", 250, []Fingerprint{Fingerprint(around[:16]), Fingerprint(around[16:])})
			if l.seen("'A-17'") {
				t.Error("a hit across two fingerprints")
			}
			l.run(0, slices.Concat(around, around, key[:]))
			if !l.seen("'A-17'") {
				t.Error("the true hit behind two false ones is not found")
			}
		})
	}
}

// The same byte over and over: every position matches, and the search must still
// look at multiples of 16 only, and end.
func TestSQLSeenRepeatedBytes(t *testing.T) {
	t.Parallel()
	l := newSQLLog(t)
	sevens := Fingerprint(slices.Repeat([]byte{7}, 16))
	almost := slices.Repeat([]byte{7}, 1600)
	for i := 0; i < len(almost); i += 16 {
		almost[i] = 6 + byte(i%3)*2 // never 7: all runs of sevens are 15 long
	}
	l.run(0, almost)
	if l.seenFingerprint(sevens) {
		t.Error("fifteen bytes are not sixteen")
	}
	l.run(1, append(almost[:1584:1584], sevens[:]...))
	if !l.seenFingerprint(sevens) {
		t.Error("not found at the end")
	}
}

// Against a plain map: random runs, seals and blocks of odd sizes, every key and
// its neighbours asked.
func TestSQLSeenModel(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	l := newSQLLog(t)
	in := map[Fingerprint]bool{}
	var all []Fingerprint
	for range 12 {
		log := rng.IntN(2)
		fps := randomFingerprints(rng, 1+rng.IntN(60))
		if rng.IntN(2) == 0 {
			l.run(log, flat(fps))
		} else {
			l.segment(log, "live", 1+rng.IntN(20), fps)
		}
		for _, f := range fps {
			in[f] = true
		}
		all = append(all, fps...)
	}
	for _, f := range all {
		below, above := f, f
		below[15]--
		above[15]++
		for _, f := range []Fingerprint{f, below, above} {
			if got := l.seenFingerprint(f); got != in[f] {
				t.Errorf("seed %d: %x: %v", seed, f, got)
			}
		}
	}
}

// A look-up reads one block a live segment by the primary key, and only the
// unsealed runs, however many rows there are. The functions' own texts are
// explained, so they cannot be others than those that run.
func TestSQLSeenUsesIndexes(t *testing.T) {
	t.Parallel()
	l := newSQLLog(t)
	rng := rand.New(rand.NewPCG(1, 2))
	var last []Fingerprint
	for range 20 {
		last = randomFingerprints(rng, 500)
		l.segment(0, "live", 1, last)
	}
	l.exec(`INSERT INTO @.runs (log, seq, run_id, ranges) SELECT $1, n, gen_random_uuid(), '{}' FROM generate_series(1, 5000) n`, l.logs[0])
	l.exec("UPDATE @.logs SET head = 5000, sealed = 5000 WHERE id = $1", l.logs[0])
	l.runs[0] = 5000
	l.run(0, last[0][:])
	l.db.Exec(t, l.name("ANALYZE @.blocks, @.segments, @.runs, @.logs"))
	for function, want := range map[string]*regexp.Regexp{
		"in_segments": regexp.MustCompile(`Index Scan Backward using blocks_kept_pkey on blocks_kept \w+ \(actual rows=1(\.00)? loops=20\)`),
		"in_runs":     regexp.MustCompile(`Index Scan using runs_\w+ on runs r .*\n\s*Index Cond: \(\(log = l\.id\) AND \(seq > l\.sealed\)\)`),
	} {
		var body string
		l.scan(&body, "SELECT prosrc FROM pg_proc WHERE proname = $1 AND pronamespace = $2::regnamespace", function,
			pgx.Identifier{l.db.Schema}.Sanitize())
		l.exec("SET plan_cache_mode = force_generic_plan") // as the function plans: without the values
		l.exec("PREPARE look (bigint[], bytea) AS " + body)
		rows, err := l.conn.Query(t.Context(), fmt.Sprintf(`EXPLAIN (ANALYZE, TIMING OFF, SUMMARY OFF, COSTS OFF)
			EXECUTE look ('{%d,%d}', '\x%x')`, l.logs[0], l.logs[1], Fingerprint{0: 255, 15: 1}))
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		plan := strings.Join(lines, "\n")
		if !want.MatchString(plan) {
			t.Errorf("%s: no %s in\n%s", function, want, plan)
		}
		l.exec("DEALLOCATE look")
	}
	if !l.seenFingerprint(last[250]) || l.seenFingerprint(Fingerprint{0: 255, 15: 1}) {
		t.Error("the answers are wrong")
	}
}
