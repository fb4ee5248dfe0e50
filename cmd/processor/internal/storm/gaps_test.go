package storm

import (
	"math"
	"slices"
	"testing"
	"time"
)

var zero = time.Unix(1_000_000, 0)

func at(seconds float64) time.Time {
	return zero.Add(time.Duration(math.Round(seconds*1000)) * time.Millisecond)
}

// a and b are two processes of one place, c of another.
var a, b, c = process{0, 10}, process{0, 11}, process{1, 12}

// history is two partitions: one stays with c, the other goes from a over b to c,
// and back to c's own new claim.
func history() trail {
	t := trail{claims: map[claim]process{{0, 1}: c, {1, 1}: a, {1, 2}: b, {1, 3}: c, {1, 4}: c}}
	add := func(part int32, epoch int64, moments ...float64) {
		for _, m := range moments {
			t.commits = append(t.commits, commit{claim{part, epoch}, at(m), 10})
		}
	}
	add(0, 1, 0, 1, 1.2, 8.2, 8.4, 20)
	add(1, 1, 0, 1)
	add(1, 2, 4, 4.5)
	add(1, 3, 6)
	add(1, 4, 7)
	return t
}

func classes(gaps []gap, class string) (of []float64) {
	for _, g := range gaps {
		if g.class == class {
			of = append(of, float64(g.to.Sub(g.from).Milliseconds())/1000)
		}
	}
	return of
}

func TestGapsAreClassed(t *testing.T) {
	t.Parallel()
	tr := history()
	gaps := tr.gaps([]*event{{Kind: freeze, At: at(1.3), Till: at(8), pid: c.pid}, {Kind: freeze, At: at(9), Till: at(10), pid: a.pid}})
	for class, want := range map[string][]float64{
		unmoved: {1, 0.2, 0.2, 11.6, 1, 0.5}, frozen: {7}, moved: {3, 1.5}, reclaimed: {1},
	} {
		if got := classes(gaps, class); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", class, got, want)
		}
	}
}

// A claim that no log names is nobody's: it moved, to be on the safe side.
func TestUnknownClaimsMoved(t *testing.T) {
	t.Parallel()
	tr := history()
	tr.claims = nil
	if got := classes(tr.gaps(nil), moved); !slices.Equal(got, []float64{3, 1.5, 1}) {
		t.Errorf("moved: %v", got)
	}
}

func TestOnlyTheWindowOfAnEventCounts(t *testing.T) {
	t.Parallel()
	tr := history()
	gaps := tr.gaps(nil)
	const session = 1500 * time.Millisecond // a window of 5.5 s
	if got := seconds(touching(gaps, unmoved, []*event{{Kind: join, At: at(1.1)}}, session)); quantile(got, 1) != 7 || len(got) != 3 {
		t.Errorf("behind an event at 1.1 s: %v", got)
	}
	if got := touching(gaps, unmoved, []*event{{Kind: join, At: at(21)}}, session); len(got) != 0 {
		t.Errorf("behind the last commit: %v", got)
	}
	if got := within(gaps, moved, phase{from: at(3), to: at(5)}); len(got) != 1 || got[0].seconds() != 3 {
		t.Errorf("moved between 3 and 5 s: %v", got)
	}
}

// A gap is what its stages are: until the takeover, until the view is there, until the
// commit. What no log tells is the commit's.
func TestStages(t *testing.T) {
	t.Parallel()
	tr := history()
	tr.taken = map[claim]time.Time{{1, 2}: at(2), {1, 3}: at(3), {0, 1}: at(8.1)}
	tr.loaded = map[place][]time.Time{{b, 1}: {at(1.5), at(3.5), at(4.2)}, {c, 0}: {at(8.15)}}
	got := stagesOf(within(tr.gaps(nil), moved, phase{from: at(3), to: at(5)}))
	if want := (Stages{TakeoverP50: 1, TakeoverP99: 1, ViewP50: 1.5, ViewP99: 1.5, CommitP50: 0.5, CommitP99: 0.5}); got != want {
		t.Errorf("%+v", got)
	}
	got = stagesOf(within(tr.gaps(nil), moved, phase{from: at(5.5), to: at(6.5)}))
	if want := (Stages{CommitP50: 1.5, CommitP99: 1.5}); got != want { // it was taken before the gap began
		t.Errorf("%+v", got)
	}
	got = stagesOf(within(tr.gaps(nil), unmoved, phase{from: at(8.1), to: at(8.3)}))
	if got.CommitP50 != 7 {
		t.Errorf("unmoved: %+v", got)
	}
}

func TestRecoveries(t *testing.T) {
	t.Parallel()
	tr := history()
	ph := phase{from: at(0), to: at(30), events: []*event{{Kind: kill, At: at(2), pid: a.pid, held: []int32{1}}}}
	if got := tr.recoveries(ph, time.Second); !slices.Equal(got, []float64{2}) {
		t.Errorf("killed at 2, another committed at 4: %v", got)
	}
	ph.events[0].pid = b.pid // it was killed before it committed: its own commits do not count
	if got := tr.recoveries(ph, time.Second); !slices.Equal(got, []float64{4}) {
		t.Errorf("the victim's own commits count: %v", got)
	}
	ph.events = []*event{{Kind: kill, At: at(10), pid: c.pid, held: []int32{0, 1}}}
	if got := tr.recoveries(ph, 2*time.Second); !slices.Equal(got, []float64{10, 10}) {
		t.Errorf("never recovered: %v", got)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(100 - i)
	}
	for _, c := range []struct {
		values  []float64
		q, want float64
	}{{nil, 0.99, 0}, {[]float64{3, 1, 2}, 0.5, 2}, {[]float64{3, 1, 2}, 0.99, 3}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1}} {
		if got := quantile(c.values, c.q); got != c.want {
			t.Errorf("%v of %d values: %v, want %v", c.q, len(c.values), got, c.want)
		}
	}
}

func TestAppliedIn(t *testing.T) {
	t.Parallel()
	tr := history()
	if n := tr.applied(at(0), at(4)); n != 40 { // behind 0, up to 4
		t.Errorf("%d", n)
	}
	if n := tr.of(1); len(n) != 6 || n[0].part != 1 {
		t.Errorf("%v", n)
	}
}
