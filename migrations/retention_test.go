package migrations_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"effectonce/internal/pgtest"
)

// now is the database's clock; the tests count hours from it.
func (f *fixture) now() time.Time {
	f.t.Helper()
	var now time.Time
	f.scan(&now, "SELECT clock_timestamp()")
	return now
}

// batch commits one batch of a partition, with its newest record time; nil when no
// stamp counts.
func (f *fixture) batch(partition int32, newest *time.Time) {
	f.t.Helper()
	var from int64
	f.scan(&from, "SELECT next_offset FROM @.positions WHERE partition = $1 AND lane = ''", partition)
	a := advance{[]int32{partition}, []uuid{id(1)}, [][]byte{{1}}, []int64{from}, []int64{from + 10}, []*time.Time{newest}}
	tx, err := f.conn.Begin(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if _, err := f.fence(f.t.Context(), tx, a); err != nil {
		f.t.Fatal(err)
	}
	if err := tx.Commit(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
}

// hours is a time for people: hours from the base.
func hours(base time.Time, at *time.Time) string {
	if at == nil {
		return "none"
	}
	return fmt.Sprintf("%+.1f h", at.Sub(base).Hours())
}

// none is the batch without a stamp that counts.
const none = -1e6

// TestProgress: progress is a time that a second, later batch has also reached,
// whatever the clocks of producers say.
func TestProgress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	for name, test := range map[string]struct {
		batches        []float64 // newest record times in hours from now
		progress, last string
	}{
		"one batch alone":                        {[]float64{-5}, "none", "-5.0 h"},
		"a second one, later":                    {[]float64{-5, -4}, "-5.0 h", "-4.0 h"},
		"a second one, earlier":                  {[]float64{-5, -6}, "-6.0 h", "-5.0 h"},
		"steadily on":                            {[]float64{-5, -4, -3, -2}, "-3.0 h", "-2.0 h"},
		"one batch far ahead of its neighbours":  {[]float64{-50, -49, -1, -48, -47}, "-47.0 h", "-1.0 h"},
		"two of them":                            {[]float64{-50, -49, -1, -48, -2, -47}, "-2.0 h", "-1.0 h"},
		"a slow clock does not turn it back":     {[]float64{-5, -4, -3, -9000}, "-4.0 h", "-3.0 h"},
		"years ahead":                            {[]float64{-5, -4, 20000, 20000}, "-5.0 h", "-4.0 h"},
		"years ahead, the first":                 {[]float64{20000, -5, 20000}, "none", "-5.0 h"},
		"just ahead counts":                      {[]float64{-1, 0.05, 0.05}, "+0.1 h", "+0.1 h"},
		"six minutes ahead does not":             {[]float64{-1, 0.1, 0.1}, "none", "-1.0 h"},
		"a batch without times":                  {[]float64{-5, none, -4, none}, "-5.0 h", "-4.0 h"},
		"no times at all":                        {[]float64{none, none}, "none", "none"},
		"a stamp of -1 ms is none":               {[]float64{-5, -1e9, -1e9}, "none", "-5.0 h"},
		"stood still, then all at once, waits":   {[]float64{-240, -239, -1}, "-239.0 h", "-1.0 h"},
		"stood still, then two batches, follows": {[]float64{-240, -239, -1, -0.5}, "-1.0 h", "-0.5 h"},
	} {
		f.exec("UPDATE @.positions SET last_record_time = NULL, progress = NULL")
		base := f.now()
		for _, h := range test.batches {
			at := base.Add(time.Duration(h * float64(time.Hour)))
			switch h {
			case none:
				f.batch(1, nil)
				continue
			case -1e9:
				at = time.UnixMilli(-1)
			}
			f.batch(1, &at)
		}
		var progress, last *time.Time
		f.scan2(&progress, &last, "SELECT progress, last_record_time FROM @.positions WHERE partition = 1")
		if diff := cmp.Diff([]string{test.progress, test.last}, []string{hours(base, progress), hours(base, last)}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func (f *fixture) scan2(a, b any, sql string, args ...any) {
	f.t.Helper()
	if err := f.conn.QueryRow(f.t.Context(), f.name(sql), args...).Scan(a, b); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// stand is a partition's row: hours of progress, and what is left to read.
type stand struct {
	progress float64
	behind   int64
}

// TestLogProgress: how far a log has come. Partition 1 is the one whose log it is
// in scope partition; in scope topic all three count.
func TestLogProgress(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	var whole int64
	f.scan(&whole, `INSERT INTO @.logs (pipeline, topic_id, generation) VALUES ($1, $2, '\x01') RETURNING id`, f.pipeline, id(9))
	for name, test := range map[string]struct {
		stands           [3]stand
		ends             bool // Kafka told them
		partition, topic string
	}{
		"the slowest decides":              {[3]stand{{-3, 1}, {-2, 1}, {-4, 1}}, true, "-2.0 h", "-4.0 h"},
		"one has none yet":                 {[3]stand{{none, 1}, {-2, 1}, {-4, 1}}, true, "-2.0 h", "none"},
		"one has none and nothing to read": {[3]stand{{none, 0}, {-2, 1}, {-4, 1}}, true, "-2.0 h", "-4.0 h"},
		"the slowest is read to its end":   {[3]stand{{-3, 1}, {-2, 1}, {-400, 0}}, true, "-2.0 h", "-3.0 h"},
		"all are read to their ends":       {[3]stand{{-30, 0}, {-20, 0}, {-400, 0}}, true, "-20.0 h", "-20.0 h"},
		"all are, and none has any":        {[3]stand{{none, 0}, {none, 0}, {none, 0}}, true, "none", "none"},
		"nobody knows the ends":            {[3]stand{{-3, 0}, {-2, 0}, {-400, 0}}, false, "-2.0 h", "-400.0 h"},
		"the clock was ahead once":         {[3]stand{{9000, 1}, {9000, 1}, {9000, 1}}, true, "+0.0 h", "+0.0 h"},
		"idle alone stays where it is":     {[3]stand{{-3, 0}, {-300, 0}, {-3, 0}}, true, "-300.0 h", "-3.0 h"},
	} {
		base := f.now()
		ends, numbers := []int64{}, []int32{}
		for p, s := range test.stands {
			at := &time.Time{}
			if *at = base.Add(time.Duration(s.progress * float64(time.Hour))); s.progress == none {
				at = nil
			}
			f.exec("UPDATE @.positions SET progress = $1 WHERE partition = $2", at, p)
			if test.ends {
				ends, numbers = append(ends, 100+s.behind), append(numbers, int32(p))
			}
		}
		var partition, topic *time.Time
		f.scan2(&partition, &topic, "SELECT @.log_progress($1, $3, $4), @.log_progress($2, $3, $4)", f.logs[1], whole, numbers, ends)
		if diff := cmp.Diff([]string{test.partition, test.topic}, []string{hours(base, partition), hours(base, topic)}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// A replay's lane has a time of its own, which says nothing.
	f.exec("UPDATE @.positions SET progress = now()")
	f.exec(`INSERT INTO @.positions (pipeline, topic_id, partition, lane, next_offset, generation, progress)
		VALUES ($1, $2, 1, 'replay', 0, '\x01', '2001-01-01')`, f.pipeline, id(9))
	var at *time.Time
	f.scan(&at, "SELECT @.log_progress($1, '{}', '{}')", whole)
	if at == nil || at.Year() == 2001 {
		t.Errorf("a lane counts: %v", at)
	}
}

// segment makes a live one with a newest record time.
func (f *fixture) segment(n byte, log int64, newest *time.Time) {
	f.t.Helper()
	f.exec(`INSERT INTO @.segments (id, log, state, tier, keys, blocks, oldest, newest, first_run, last_run)
		VALUES ($1, $2, 'live', 0, 0, 0, $3, $3, 1, 1)`, id(n), log, newest)
}

func (f *fixture) manifest(log int64) (m uuid) {
	f.t.Helper()
	f.scan(&m, "SELECT manifest FROM @.logs WHERE id = $1", log)
	return m
}

func (f *fixture) expire(log int64, manifest uuid, dead ...uuid) error {
	f.t.Helper()
	_, err := f.conn.Exec(f.t.Context(), f.name("SELECT @.expire_segments($1, $2, $3, $4, '10 hours', '{}', '{}')"),
		log, manifest, id(77), dead)
	return err
}

func (f *fixture) live() (list string) {
	f.t.Helper()
	f.scan(&list, "SELECT coalesce(string_agg(right(id::text, 2), ' ' ORDER BY id), '') FROM @.segments WHERE state = 'live'")
	return list
}

// TestExpireSegments: what may die, and that everything is compared.
func TestExpireSegments(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	base := f.now()
	at := func(h float64) *time.Time {
		x := base.Add(time.Duration(h * float64(time.Hour)))
		return &x
	}
	log := f.logs[1]
	f.exec("UPDATE @.positions SET progress = $1 WHERE partition = 1", at(-1))
	f.exec("UPDATE @.positions SET progress = $1 WHERE partition <> 1", at(-1000))
	f.segment(0x10, log, at(-20))
	f.segment(0x11, log, at(-11.1))
	f.segment(0x12, log, at(-10.9))
	f.segment(0x13, log, nil) // nobody knows: never
	f.segment(0x14, f.logs[0], at(-500))
	f.segment(0x15, log, at(-30))
	f.exec("UPDATE @.segments SET state = 'building' WHERE id = $1", id(0x15))

	for name, test := range map[string]struct {
		log      int64
		manifest uuid
		dead     []uuid
		code     string
	}{
		"another manifest":             {log, id(66), []uuid{id(0x10)}, "EO005"},
		"no manifest":                  {log, uuid{}, []uuid{id(0x10)}, "EO005"},
		"no such log":                  {-1, f.manifest(log), []uuid{id(0x10)}, "EO004"},
		"one is too young":             {log, f.manifest(log), []uuid{id(0x10), id(0x12)}, "EO006"},
		"one has no time":              {log, f.manifest(log), []uuid{id(0x10), id(0x13)}, "EO006"},
		"one is another log's":         {log, f.manifest(log), []uuid{id(0x10), id(0x14)}, "EO006"},
		"its log has not come so far":  {f.logs[0], f.manifest(f.logs[0]), []uuid{id(0x14)}, "EO006"},
		"one is being built":           {log, f.manifest(log), []uuid{id(0x10), id(0x15)}, "EO006"},
		"one is not there":             {log, f.manifest(log), []uuid{id(0x10), id(0x99)}, "EO006"},
		"one is named twice":           {log, f.manifest(log), []uuid{id(0x10), id(0x10)}, "EO006"},
		"an array that is null":        {log, f.manifest(log), nil, "EO006"},
		"the log's partition is alone": {f.logs[2], f.manifest(f.logs[2]), []uuid{id(0x10)}, "EO006"},
	} {
		if err := f.expire(test.log, test.manifest, test.dead...); code(err) != test.code {
			t.Errorf("%s: %v, want %s", name, err, test.code)
		}
	}
	if diff := cmp.Diff("10 11 12 13 14", f.live()); diff != "" {
		t.Error(diff)
	}
	before := f.manifest(log)
	f.exec("INSERT INTO @.holds (id, log, oldest, reason, expires_at) VALUES ($1, $2, $3, 'replay', now() + interval '1 hour')", id(1), log, at(-20))
	if err := f.expire(log, before, id(0x10)); code(err) != "EO006" {
		t.Errorf("a hold was ignored: %v", err)
	}
	f.exec("DELETE FROM @.holds")
	f.exec("INSERT INTO @.holds (id, log, oldest, reason, expires_at) VALUES ($1, $2, $3, 'a later time', now() + interval '1 hour')", id(1), log, at(-11))
	f.exec("INSERT INTO @.holds (id, log, oldest, reason, expires_at) VALUES ($1, $2, $3, 'over', now() - interval '1 second')", id(2), log, at(-40))
	f.exec("INSERT INTO @.holds (id, log, oldest, reason, expires_at) VALUES ($1, $2, $3, 'another log', now() + interval '1 hour')", id(3), f.logs[0], at(-40))
	if err := f.expire(log, before, id(0x10), id(0x11)); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff("12 13 14", f.live()); diff != "" || f.manifest(log) != id(77) {
		t.Errorf("manifest %x: %s", f.manifest(log), diff)
	}
	f.exec("UPDATE @.logs SET state = 'closed' WHERE id = $1", f.logs[0])
	if err := f.expire(f.logs[0], f.manifest(f.logs[0]), id(0x14)); code(err) != "EO004" {
		t.Errorf("a closed log: %v", err)
	}
}

// TestExpiryWaitsForAHold: a replay has placed its hold and not committed yet, while
// segments are about to die. Nobody may miss the other.
func TestExpiryWaitsForAHold(t *testing.T) {
	t.Parallel()
	f := newFixture(t, pgtest.New(t))
	base := f.now()
	old := base.Add(-20 * time.Hour)
	f.exec("UPDATE @.positions SET progress = $1", base)
	f.segment(0x10, f.logs[1], &old)
	replay := f.db.Conn(t)
	tx, err := replay.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), f.name("INSERT INTO @.holds (id, log, oldest, reason, expires_at) VALUES ($1, $2, $3, 'replay', now() + interval '1 hour')"),
		id(1), f.logs[1], old); err != nil {
		t.Fatal(err)
	}
	before := f.manifest(f.logs[1])
	waiter, ended := f.conn.PgConn().PID(), make(chan error, 1)
	go func() { ended <- f.expire(f.logs[1], before, id(0x10)) }()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for waits := false; !waits; {
		select {
		case err := <-ended:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
		if err := f.db.Owner.QueryRow(ctx, "SELECT cardinality(pg_blocking_pids($1)) > 0", waiter).Scan(&waits); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; code(err) != "EO006" {
		t.Errorf("the hold was not seen: %v", err)
	}
}
