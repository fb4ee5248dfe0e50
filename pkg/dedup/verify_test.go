package dedup

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"effectonce/internal/pgtx"
	"effectonce/pkg/stream"
)

// mixed is a log with a merged segment, two others and some runs, in small blocks.
// Its keys are 1 to keys, without those divisible by ten.
func mixed(t *testing.T) (w *world, v *View, keys int64) {
	t.Helper()
	w = newWorld(t, 1)
	w.store.sizes.block, w.store.sizes.page, w.store.sizes.slice, w.store.sizes.merge = 7, 3, 100, 4
	v = w.load(0)
	n := 0
	run := func() {
		var numbers []int
		for range 40 {
			if n++; n%10 != 0 {
				numbers = append(numbers, n)
				keys++
			}
		}
		w.write(v, 'a', numbers...)
	}
	for range 6 {
		run()
		w.write(v, 'a') // duplicates only
		run()
		w.seal(v)
		w.compact(v)
	}
	w.clean(v)
	run()
	w.write(v, 'a')
	run()
	return w, v, keys
}

func (w *world) standing() Standing {
	w.t.Helper()
	list, err := w.store.Standings(w.t.Context(), w.conn, patient, w.id)
	if err != nil || len(list) == 0 {
		w.t.Fatal(len(list), err)
	}
	return list[0]
}

func (w *world) verify(t *testing.T, second *pgx.Conn) (Verified, error) {
	t.Helper()
	return w.store.Verify(t.Context(), w.conn, second, patient, w.id, w.standing())
}

func TestStandings(t *testing.T) {
	t.Parallel()
	w, v, keys := mixed(t)
	s := v.Stats()
	got := w.standing()
	if got.Log != v.Log || got.Partition != w.part(0) || !got.Open || got.Head != v.Head || got.Sealed != v.Head-3 ||
		got.Runs != s.Runs || got.RunKeys != int64(s.Keys) || got.SegmentKeys != s.Sealed || got.Keys() != keys ||
		!slices.Equal(got.Tiers, []int64{2, 1}) || got.Segments() != 3 || got.Building != 0 || got.Dead != 0 {
		t.Errorf("%+v, and the view is %+v", got, s)
	}
	w.Exec(t, "UPDATE "+w.Relation("runs")+" SET newest = '2026-01-02' WHERE seq = $1", v.Head)
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET oldest = '2026-01-01', newest = '2026-01-01'")
	w.Exec(t, "UPDATE "+w.Relation("segments")+" SET state = 'dead', newest = '2027-01-01' WHERE tier = 1")
	got = w.standing()
	if !slices.Equal(got.Tiers, []int64{2}) || got.Dead != 1 || got.Oldest.UTC().Format(time.DateOnly) != "2026-01-01" ||
		got.Newest.UTC().Format(time.DateOnly) != "2026-01-02" {
		t.Errorf("%+v", got)
	}
	z, err := w.store.Size(t.Context(), w.conn, patient)
	if err != nil || z.Keys != got.Keys() || z.Blocks < 8192 || z.Runs < 8192 || z.Bytes() < z.Blocks+z.Runs {
		t.Errorf("%+v, %v", z, err)
	}
}

func TestFilterBytes(t *testing.T) {
	t.Parallel()
	w, v, _ := mixed(t)
	if n := v.FilterBytes(); n != 3*newFilter(0, segmentShape).bytes() {
		t.Errorf("%d bytes", n)
	}
	if n := w.load(0).FilterBytes(); n != 0 {
		t.Errorf("%d bytes of filters that are not made yet", n)
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	w, _, keys := mixed(t)
	got, err := w.verify(t, w.Conn(t))
	want := Verified{Keys: keys, Runs: 3, Segments: 3, Digests: 3, Blocks: w.standing().Blocks}
	if err != nil || got != want {
		t.Errorf("%+v, want %+v (%v)", got, want, err)
	}
}

// TestVerifyEmpty: logs without segments, without runs, and with nothing unsealed.
func TestVerifyEmpty(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	v, second := w.load(0), w.Conn(t)
	for _, step := range []func(){func() {}, func() { w.write(v, 'a', 1, 2) }, func() { w.seal(v) }, func() { w.clean(v) }} {
		step()
		if _, err := w.verify(t, second); err != nil {
			t.Error(err)
		}
	}
}

// TestVerifyFindsDamage does one thing to the rows and undoes it by beginning anew.
func TestVerifyFindsDamage(t *testing.T) {
	t.Parallel()
	const (
		block = `(SELECT b.segment, b.first FROM @blocks b JOIN @segments s ON s.id = b.segment WHERE s.tier = 1
			ORDER BY b.first OFFSET 4 LIMIT 1)`
		swapped = `substr(fingerprints, 1, 16) || substr(fingerprints, 33, 16) || substr(fingerprints, 17, 16) || substr(fingerprints, 49)`
	)
	for _, c := range []struct{ name, sql, place, problem string }{
		{"keys of a block in another order", `UPDATE @blocks SET fingerprints = ` + swapped + ` WHERE (segment, first) IN ` + block, "block 4", "key 2"},
		{"a block that reaches into the next", `UPDATE @blocks SET fingerprints = substr(fingerprints, 1, 96) || decode(repeat('ee', 16), 'hex')
			WHERE (segment, first) IN ` + block, "block 5", "key 0"},
		{"a block under another name", `UPDATE @blocks SET first = set_byte(first, 15, 1) WHERE (segment, first) IN ` + block, "block 4", "begins with"},
		{"an empty block", `UPDATE @blocks SET fingerprints = '' WHERE (segment, first) IN ` + block, "block 4", "0 bytes"},
		{"a block less", `DELETE FROM @blocks WHERE (segment, first) IN ` + block, "segment", "its row says"},
		{"a key less", `UPDATE @blocks SET fingerprints = substr(fingerprints, 1, 96) WHERE (segment, first) IN ` + block, "segment", "its row says"},
		{"a block less than the row says", `UPDATE @segments SET blocks = blocks + 1 WHERE tier = 1`, "segment", "its row says"},
		{"another digest", `UPDATE @segments SET filter_digest = set_byte(filter_digest, 3, 255 - get_byte(filter_digest, 3)) WHERE tier = 1`, "segment", "digest"},
		{"a segment of runs that are not sealed", `UPDATE @segments SET last_run = 99 WHERE tier = 1`, "segment", "covers run 99"},
		{"a run less", `DELETE FROM @runs WHERE seq = 20`, "run 20", "missing"},
		{"the last run less", `DELETE FROM @runs WHERE seq = 21`, "run 21", "missing"},
		{"a run without fingerprints", `UPDATE @runs SET fingerprints = NULL WHERE seq = 20`, "run 20", "no fingerprints"},
		{"a run that is not sorted", `UPDATE @runs SET fingerprints = ` + swapped + ` WHERE seq = 21`, "run 21", "key 2"},
		{"another head", `UPDATE @logs SET head_id = gen_random_uuid()`, "run 21", "head is"},
		{"a run beyond the head", `UPDATE @logs SET head = head - 1`, "run 21", "beyond"},
		{"another run at the end of what is sealed", `DELETE FROM @runs WHERE seq > 18; UPDATE @logs SET head = 18`, "run 18", "head is"},
		{"a key in two runs", `UPDATE @runs SET fingerprints = (SELECT substr(r.fingerprints, 1, 16) FROM @runs r WHERE r.seq = 21) WHERE seq = 20`,
			"run 20 and run 21", "in both"},
		{"a key in a segment and a run", `UPDATE @runs SET fingerprints = (SELECT first FROM @blocks WHERE (segment, first) IN ` + block + `) WHERE seq = 20`,
			", key 28 and run 20", "in both"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w, _, _ := mixed(t)
			for _, name := range []string{"blocks", "segments", "runs", "logs"} {
				c.sql = strings.ReplaceAll(c.sql, "@"+name, w.Relation(name))
			}
			if _, err := w.Owner.Exec(t.Context(), c.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
			_, err := w.verify(t, w.Conn(t))
			var d *DamageError
			if !errors.As(err, &d) || !strings.Contains(d.Place, c.place) || !strings.Contains(d.Problem, c.problem) {
				t.Errorf("%v, want %s: … %s …", err, c.place, c.problem)
			}
		})
	}
}

// TestVerifyAsksFilters: a filter that has lost a key is found, the gate and a
// segment's own.
func TestVerifyAsksFilters(t *testing.T) {
	t.Parallel()
	w, _, _ := mixed(t)
	for name, damage := range map[string]func(*View){
		"":                         func(*View) {},
		"does not pass the filter": func(v *View) { v.gate = newFilter(1, gateShape) },
		"its segment's filter":     func(v *View) { v.segments[1].filter = newFilter(1, segmentShape) },
		"run 19":                   func(v *View) { v.fresh = newGeneration(); v.gate = newFilter(1, gateShape); v.segments = nil },
	} {
		v := w.load(0)
		w.rebuild(v)
		damage(v)
		err := w.reading(t, v)
		if name == "" && err != nil || name != "" && (err == nil || !strings.Contains(err.Error(), name)) {
			t.Errorf("%q: %v", name, err)
		}
	}
	// The view has another manifest: what is missing may have been expired since.
	v := w.load(0)
	w.rebuild(v)
	v.gate, v.manifest = newFilter(1, gateShape), stream.UUID{1}
	if err := w.reading(t, v); !errors.Is(err, ErrDropView) {
		t.Error(err)
	}
}

// reading is Verify with a view that is handed in.
func (w *world) reading(t *testing.T, v *View) error {
	t.Helper()
	tx, err := pgtx.Snapshot(t.Context(), w.conn, patient)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(t.Context())
	r := &reading{store: w.store, tx: tx, view: v}
	if err := r.open(t.Context(), v.Log); err != nil {
		t.Fatal(err)
	}
	return r.all(t.Context())
}

// TestVerifyWhileTheLogMoves: commits, seals, compactions and clean-up go on, and
// are never taken for damage.
func TestVerifyWhileTheLogMoves(t *testing.T) {
	t.Parallel()
	w, v, _ := mixed(t)
	conn, second := w.Conn(t), w.Conn(t)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		n := 1000
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			r := newRun(v, 'b', n, n+1, n+2)
			n += 3
			err := w.append(t.Context(), w.conn, r)
			if err == nil {
				v.Learn(r.ID, r.Fingerprints)
				_, err = w.store.Seal(t.Context(), w.conn, patient, v)
			}
			if err == nil {
				_, err = w.store.Compact(t.Context(), w.conn, patient, v, nil)
			}
			if err == nil {
				_, err = w.store.Clean(t.Context(), w.conn, patient, v.Log)
			}
			if err != nil {
				ended <- fmt.Errorf("the writer: %w", err)
				return
			}
		}
	}()
	for range 20 {
		_, err := w.store.Verify(t.Context(), conn, second, patient, w.id, Standing{Log: v.Log, Partition: w.part(0)})
		if err != nil && !errors.Is(err, ErrDropView) {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
