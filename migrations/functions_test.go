package migrations_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtest"
)

type uuid = [16]byte

func id(n byte) uuid { return uuid{15: n} }

// fixture is one pipeline with three partitions of one topic, their logs, and a
// session of the runtime role.
type fixture struct {
	t        *testing.T
	db       *pgtest.DB
	conn     *pgx.Conn
	pipeline int64
	logs     []int64
}

func newFixture(t *testing.T, db *pgtest.DB) *fixture {
	t.Helper()
	f := &fixture{t: t, db: db, conn: db.Conn(t)}
	f.scan(&f.pipeline, `INSERT INTO @.pipelines (name, salt, generation, group_name, cluster_id, system_identifier)
		VALUES ('orders', $1, '\x01', 'orders', 'c', 1) RETURNING id`, make([]byte, 16))
	f.exec(`INSERT INTO @.topics (pipeline, topic_id, name, partitions, scope, start, generation)
		VALUES ($1, $2, 'orders', 3, 'partition', 'earliest', '\x01')`, f.pipeline, id(9))
	for p := range 3 {
		f.exec(`INSERT INTO @.positions (pipeline, topic_id, partition, next_offset, owner, generation)
			VALUES ($1, $2, $3, 100, $4, '\x01')`, f.pipeline, id(9), p, id(1))
		var log int64
		f.scan(&log, `INSERT INTO @.logs (pipeline, topic_id, partition, generation, head_id)
			VALUES ($1, $2, $3, '\x01', $4) RETURNING id`, f.pipeline, id(9), p, id(50))
		f.logs = append(f.logs, log)
	}
	return f
}

func (f *fixture) name(sql string) string {
	return strings.ReplaceAll(sql, "@.", pgx.Identifier{f.db.Schema}.Sanitize()+".")
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.conn.Exec(f.t.Context(), f.name(sql), args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

func (f *fixture) scan(dest any, sql string, args ...any) {
	f.t.Helper()
	if err := f.conn.QueryRow(f.t.Context(), f.name(sql), args...).Scan(dest); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// advance are the arguments of fence that move partitions 0 and 1 by ten.
type advance struct {
	Partitions []int32
	Owners     []uuid
	Generation [][]byte
	From, To   []int64
	Times      []*time.Time
}

func good() advance {
	return advance{[]int32{1, 0}, []uuid{id(1), id(1)}, [][]byte{{1}, {1}}, []int64{100, 100}, []int64{110, 120}, []*time.Time{nil, nil}}
}

func (f *fixture) fence(ctx context.Context, tx pgx.Tx, a advance) (xact string, err error) {
	topics, lanes, epochs := make([]uuid, len(a.Partitions)), make([]string, len(a.Partitions)), make([]int32, len(a.Partitions))
	for i := range topics {
		topics[i], epochs[i] = id(9), 4
	}
	err = tx.QueryRow(ctx, f.name("SELECT @.fence($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)"), f.pipeline, topics,
		a.Partitions, lanes, a.Owners, a.Generation, a.From, a.To, epochs, a.Times).Scan(&xact)
	return xact, err
}

// appended are the arguments of append_runs that bring one key to log 0 and none
// to log 1.
type appended struct {
	Xact         string
	Logs         []int64
	Generations  [][]byte
	Heads, Runs  []uuid
	Fingerprints [][]byte
	RangeLogs    []int64
}

func (f *fixture) good(xact string) appended {
	return appended{xact, []int64{f.logs[1], f.logs[0]}, [][]byte{{1}, {1}}, []uuid{id(50), id(50)}, []uuid{id(61), id(60)},
		[][]byte{nil, bytes.Repeat([]byte{7}, 16)}, []int64{f.logs[0], f.logs[1]}}
}

func (f *fixture) append(ctx context.Context, tx pgx.Tx, a appended) error {
	n := len(a.RangeLogs)
	topics, owners, lanes := make([]uuid, n), make([]uuid, n), make([]string, n)
	partitions, from, to, epochs, counts := make([]int32, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range n {
		topics[i], owners[i], partitions[i], from[i], to[i], epochs[i], counts[i] = id(9), id(1), int32(i), 100, 110, 3, int64(i)
	}
	_, err := tx.Exec(ctx, f.name("SELECT @.append_runs($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15,$16,$17,$18,$19)"),
		a.Xact, a.Logs, a.Generations, a.Heads, a.Runs, make([]*time.Time, len(a.Logs)), a.Fingerprints,
		a.RangeLogs, topics, partitions, lanes, from, to, owners, epochs, counts, counts, counts, counts)
	return err
}

// in runs f in a transaction that is always rolled back.
func (f *fixture) in(do func(ctx context.Context, tx pgx.Tx) error) error {
	f.t.Helper()
	tx, err := f.conn.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(f.t.Context()) }()
	return do(f.t.Context(), tx)
}

func TestCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	stamp := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	tx, err := f.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := good()
	a.Times[0] = &stamp
	xact, err := f.fence(t.Context(), tx, a)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.append(t.Context(), tx, f.good(xact)); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}

	for query, want := range map[string]string{
		`SELECT string_agg(format('%s:%s:%s', partition, next_offset, last_record_time IS NULL), ' ' ORDER BY partition) FROM @.positions`:     "0:120:t 1:110:f 2:100:t",
		`SELECT string_agg(format('%s:%s', head, right(head_id::text, 2)), ' ' ORDER BY id) FROM @.logs`:                                       "1:3c 1:3d 0:32",
		`SELECT string_agg(format('%s:%s:%s', seq, right(run_id::text, 2), encode(fingerprints, 'hex')), ' ' ORDER BY log) FROM @.runs`:        "1:3c:" + strings.Repeat("07", 16) + " 1:3d:",
		`SELECT string_agg(format('%s %s %s-%s %s', pipeline, partition, from_offset, to_offset, read), ', ' ORDER BY partition) FROM @.audit`: "orders 0 100-110 0, orders 1 100-110 1",
		`SELECT count(*)::text FROM @.runs WHERE fingerprints IS NULL`:                                                                         "0",
	} {
		var got string
		f.scan(&got, query)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", query, diff)
		}
	}
}

func TestFenceRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	for name, change := range map[string]func(*advance){
		"another owner":              func(a *advance) { a.Owners[1] = id(2) },
		"another generation":         func(a *advance) { a.Generation[0] = []byte{2} },
		"behind":                     func(a *advance) { a.From[0] = 99 },
		"ahead":                      func(a *advance) { a.From[0] = 101 },
		"backwards":                  func(a *advance) { a.To[0] = 99 },
		"no such partition":          func(a *advance) { a.Partitions[0] = 7 },
		"the same partition twice":   func(a *advance) { a.Partitions[0] = 0 },
		"an array that is too short": func(a *advance) { a.Owners = a.Owners[:1] },
		"an array that is null":      func(a *advance) { a.From = nil },
		"partitions that are null":   func(a *advance) { a.Partitions = nil },
	} {
		a := good()
		change(&a)
		err := f.in(func(ctx context.Context, tx pgx.Tx) error {
			_, err := f.fence(ctx, tx, a)
			return err
		})
		if code(err) != "EO001" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := f.in(func(ctx context.Context, tx pgx.Tx) error { _, err := f.fence(ctx, tx, good()); return err }); err != nil {
		t.Errorf("a refused fence left something: %v", err)
	}
}

// A position nobody owns fences everybody: null equals nothing.
func TestFenceWithoutOwner(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	f.exec("UPDATE @.positions SET owner = NULL WHERE partition = 1")
	err := f.in(func(ctx context.Context, tx pgx.Tx) error { _, err := f.fence(ctx, tx, good()); return err })
	if code(err) != "EO001" {
		t.Error(err)
	}
}

func TestAppendRefuses(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	for name, test := range map[string]struct {
		change func(*appended)
		code   string
	}{
		"a moved head":               {func(a *appended) { a.Heads[1] = id(51) }, "EO002"},
		"the same log twice":         {func(a *appended) { a.Logs[0] = a.Logs[1]; a.RangeLogs = a.Logs[:1] }, "EO002"},
		"another transaction":        {func(a *appended) { a.Xact = "1" }, "EO003"},
		"another generation":         {func(a *appended) { a.Generations[0] = []byte{2} }, "EO004"},
		"no such log":                {func(a *appended) { a.Logs[0] = -1; a.RangeLogs = a.Logs }, "EO004"},
		"generations too short":      {func(a *appended) { a.Generations = a.Generations[:1] }, "EO004"},
		"fingerprints too short":     {func(a *appended) { a.Fingerprints = a.Fingerprints[:1] }, "22023"},
		"fingerprints missing":       {func(a *appended) { a.Fingerprints = nil }, "22023"},
		"a range of another log":     {func(a *appended) { a.RangeLogs[0] = f.logs[2] }, "22023"},
		"half a fingerprint":         {func(a *appended) { a.Fingerprints[0] = make([]byte, 24) }, "23514"},
		"both moved and not fenced":  {func(a *appended) { a.Heads[0], a.Xact = id(51), "1" }, "EO003"},
		"nothing wrong":              {func(*appended) {}, ""},
		"nothing wrong, no ranges":   {func(a *appended) { a.RangeLogs = nil }, ""},
		"nothing wrong, empty bytea": {func(a *appended) { a.Fingerprints[0] = []byte{} }, ""},
	} {
		var runs int
		err := f.in(func(ctx context.Context, tx pgx.Tx) error {
			xact, err := f.fence(ctx, tx, good())
			if err != nil {
				return err
			}
			a := f.good(xact)
			test.change(&a)
			if err := f.append(ctx, tx, a); err != nil {
				return err
			}
			return tx.QueryRow(ctx, f.name("SELECT count(*) FROM @.runs WHERE fingerprints IS NOT NULL")).Scan(&runs)
		})
		if code(err) != test.code || (test.code == "" && (err != nil || runs != 2)) {
			t.Errorf("%s: %v, %d runs", name, err, runs)
		}
	}
	f.exec("UPDATE @.logs SET state = 'closed' WHERE id = $1", f.logs[0])
	err := f.in(func(ctx context.Context, tx pgx.Tx) error {
		xact, err := f.fence(ctx, tx, good())
		if err != nil {
			return err
		}
		return f.append(ctx, tx, f.good(xact))
	})
	if code(err) != "EO004" {
		t.Errorf("a closed log: %v", err)
	}
}

// A handler commits the transaction it was given and begins another. The effect
// up to there is applied and fenced, but what follows is not: append_runs raises.
func TestSmuggledCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	err := f.in(func(ctx context.Context, tx pgx.Tx) error {
		xact, err := f.fence(ctx, tx, good())
		if err != nil {
			return err
		}
		f.exec("COMMIT")
		f.exec("BEGIN")
		return f.append(ctx, tx, f.good(xact))
	})
	if code(err) != "EO003" {
		t.Error(err)
	}
}

type taken struct {
	Partition int32
	Outcome   string
	Next      *int64
	Epoch     *int64
	Holder    *string
}

func (f *fixture) takeover(conn *pgx.Conn, owner uuid, generation byte, wait bool, partitions ...int32) []taken {
	f.t.Helper()
	topics, lanes := make([]uuid, len(partitions)), make([]string, len(partitions))
	owners, generations := make([]uuid, len(partitions)), make([][]byte, len(partitions))
	for i := range partitions {
		topics[i], owners[i], generations[i] = id(9), owner, []byte{generation}
	}
	rows, err := conn.Query(f.t.Context(), f.name(`SELECT partition, outcome, next_offset, epoch, holder
		FROM @.takeover($1, $2, $3, $4, $5, $6, $7, $8) ORDER BY partition`),
		f.pipeline, topics, partitions, lanes, owners, generations, "host:1", wait)
	if err != nil {
		f.t.Fatal(err)
	}
	got, err := pgx.CollectRows(rows, pgx.RowToStructByPos[taken])
	if err != nil {
		f.t.Fatal(err)
	}
	return got
}

func TestTakeover(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newFixture(t, db)
	row := func(partition int32, outcome string, epoch int64, holder string) taken {
		next := int64(100)
		return taken{partition, outcome, &next, &epoch, &holder}
	}
	step := func(name string, got []taken, want ...taken) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}

	step("a new owner", f.takeover(f.conn, id(2), 1, true, 0, 1), row(0, "taken", 1, "host:1"), row(1, "taken", 1, "host:1"))
	step("the same again", f.takeover(f.conn, id(2), 1, false, 1, 0), row(0, "taken", 1, "host:1"), row(1, "taken", 1, "host:1"))
	step("another generation", f.takeover(f.conn, id(3), 2, true, 2), row(2, "generation", 0, ""))
	step("no row", f.takeover(f.conn, id(3), 1, true, 7), taken{Partition: 7, Outcome: "missing"})

	// A zombie holds partition 1 in mid-transaction: the others are taken at once.
	zombie := db.Conn(t)
	for _, sql := range []string{"BEGIN", "SELECT FROM @.positions WHERE partition = 1 FOR NO KEY UPDATE"} {
		if _, err := zombie.Exec(t.Context(), f.name(sql)); err != nil {
			t.Fatal(err)
		}
	}
	step("beside a zombie", f.takeover(f.conn, id(4), 1, false, 0, 1, 2),
		row(0, "taken", 2, "host:1"), row(1, "locked", 1, "host:1"), row(2, "taken", 1, "host:1"))

	var owner uuid
	f.scan(&owner, "SELECT owner FROM @.positions WHERE partition = 1")
	if owner != id(2) {
		t.Errorf("a locked position was given to %x", owner)
	}
	f.scan(&owner, "SELECT owner FROM @.positions WHERE partition = 0")
	if owner != id(4) {
		t.Errorf("partition 0 belongs to %x", owner)
	}
}

// The old owner commits while the new one waits for the row: the takeover returns
// the position behind that commit, not the one it saw when it began to wait.
func TestTakeoverWaitsForTheCommit(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newFixture(t, db)
	tx, err := f.conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.fence(t.Context(), tx, good()); err != nil {
		t.Fatal(err)
	}
	next := db.Conn(t)
	answer := make(chan []taken, 1)
	go func() { answer <- f.takeover(next, id(2), 1, true, 0) }()
	blocked(t, db, next)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; len(got) != 1 || got[0].Outcome != "taken" || *got[0].Next != 120 {
		t.Errorf("%+v", got)
	}
	err = f.in(func(ctx context.Context, tx pgx.Tx) error {
		a := good()
		a.From, a.To = []int64{110, 120}, []int64{111, 121}
		_, err := f.fence(ctx, tx, a)
		return err
	})
	if code(err) != "EO001" {
		t.Errorf("the old owner is not fenced: %v", err)
	}
}

// blocked returns when the session waits for a lock.
func blocked(t *testing.T, db *pgtest.DB, conn *pgx.Conn) {
	t.Helper()
	for {
		var waits bool
		if err := db.Owner.QueryRow(t.Context(), "SELECT cardinality(pg_blocking_pids($1)) > 0", conn.PgConn().PID()).Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if waits {
			return
		}
	}
}

// Two members that find no log for a scope cannot both make one, also not in
// scope topic, where the partition is null.
func TestOneOpenLogAScope(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	insert := f.name(`INSERT INTO @.logs (pipeline, topic_id, partition, generation) VALUES ($1, $2, $3, '\x01')`)
	one := int32(1)
	if _, err := f.conn.Exec(t.Context(), insert, f.pipeline, id(9), &one); code(err) != "23505" {
		t.Errorf("a second log of a partition: %v", err)
	}
	f.exec("UPDATE @.logs SET state = 'closed'")
	var none *int32
	if _, err := f.conn.Exec(t.Context(), insert, f.pipeline, id(9), none); err != nil {
		t.Errorf("beside closed ones: %v", err)
	}
	if _, err := f.conn.Exec(t.Context(), insert, f.pipeline, id(9), none); code(err) != "23505" {
		t.Errorf("a second log of a topic: %v", err)
	}
}

// The position and the log are updated once a commit: both must stay HOT, or the
// tables grow without end. Indexes on a changing column would end that.
func TestAdvanceIsHot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	f := newFixture(t, db)
	var indexed []string
	f.scan(&indexed, `SELECT coalesce(array_agg(DISTINCT a.attname::text ORDER BY a.attname::text), '{}')
		FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
		WHERE i.indrelid IN ('@.positions'::regclass, '@.logs'::regclass)`)
	want := []string{"id", "lane", "partition", "pipeline", "topic_id"}
	if diff := cmp.Diff(want, indexed); diff != "" {
		t.Error(diff)
	}
}
