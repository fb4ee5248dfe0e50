package processor

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/dedup"
)

// The window slides in steps that suit it, and the database is left in peace.
func TestAgeEvery(t *testing.T) {
	t.Parallel()
	for retention, want := range map[time.Duration]time.Duration{
		time.Second:         10 * time.Second,
		time.Hour:           time.Hour / 64,
		24 * time.Hour:      10 * time.Minute,
		30 * 24 * time.Hour: 10 * time.Minute,
	} {
		if got := ageEvery(retention); got != want {
			t.Errorf("%s: every %s, want %s", retention, got, want)
		}
	}
}

// A scope to which nobody commits is tended by the clock, also one that is too small
// to be sealed, and none that is at it already.
func TestTendAll(t *testing.T) {
	t.Parallel()
	l := newList(100, 1<<20, 1<<30)
	running(l, 1)
	running(l, 2)
	loading := wholeTopic(l, 1)
	loading.loading = true
	l.tend = nil
	for _, s := range l.scopes {
		s.tending = false
	}
	l.tendAll()
	if len(l.tend) != 0 {
		t.Errorf("without a retention %d views are tended", len(l.tend))
	}
	l.ages = true
	l.tendAll()
	l.tendAll()
	if len(l.tend) != 2 {
		t.Errorf("%d views are tended, want 2", len(l.tend))
	}
}

// A run's time must not be earlier than any of its records: where a stamp does not
// count, it has none, and the time of the commit stands for it. The position's time
// is that of the stamps that count.
func TestStampsThatDoNotCount(t *testing.T) {
	t.Parallel()
	now := time.Now().Truncate(time.Millisecond)
	for name, test := range map[string]struct {
		stamps    []time.Time
		part, run time.Time
	}{
		"all count":          {[]time.Time{now.Add(-time.Hour), now, now.Add(-time.Minute)}, now, now},
		"one is years ahead": {[]time.Time{now, now.AddDate(3, 0, 0)}, now, time.Time{}},
		"one has none":       {[]time.Time{time.UnixMilli(-1), now}, now, time.Time{}},
		"one is of 1970":     {[]time.Time{now, time.UnixMilli(0)}, now, time.Time{}},
		"none counts":        {[]time.Time{time.UnixMilli(-1), now.Add(time.Hour)}, time.Time{}, time.Time{}},
		"just ahead":         {[]time.Time{now.Add(4 * time.Minute)}, now.Add(4 * time.Minute), now.Add(4 * time.Minute)},
	} {
		c := keyless(t)
		c.horizon = now.Add(ahead)
		w := &work{}
		w.add(&part{q: &queue{claim: claimOf(1, 0), scope: &scope{view: &dedup.View{}}}})
		p := w.parts[0]
		p.log.fold.Reset(0)
		recs := make([]*kgo.Record, len(test.stamps))
		for i, at := range test.stamps {
			recs[i] = &kgo.Record{Offset: int64(i), Timestamp: at}
		}
		c.add(p, recs)
		n := len(recs)
		run := w.runs(make([]bool, n), make([]bool, n))[0]
		if !p.newest.Equal(test.part) || !run.Newest.Equal(test.run) {
			t.Errorf("%s: the position's time is %s, the run's %s", name, p.newest, run.Newest)
		}
	}
}
