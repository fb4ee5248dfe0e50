package storm

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Result is what one protocol's storm showed.
type Result struct {
	Tally

	Protocol         string  `json:"protocol"`
	Members          int     `json:"members"`
	Partitions       int32   `json:"partitions"`
	MaxBatch         int     `json:"max_batch_records"`
	SessionSeconds   float64 `json:"session_timeout_seconds"`
	HeartbeatSeconds float64 `json:"heartbeat_interval_seconds"`
	EventsPerMinute  float64 `json:"events_per_minute"`
	StormSeconds     float64 `json:"storm_seconds"`
	Seed             uint64  `json:"seed"`

	Records               int64   `json:"records"`
	Keys                  int64   `json:"keys"`
	ThroughputKept        float64 `json:"throughput_kept"`
	CalmRecordsPerSecond  float64 `json:"calm_records_per_second"`
	StormRecordsPerSecond float64 `json:"storm_records_per_second"`
	LeastBacklog          int64   `json:"least_backlog_records"` // of a partition, in both

	UnmovedMaxGap   float64 `json:"unmoved_max_gap_seconds"`
	UnmovedP99Gap   float64 `json:"unmoved_p99_gap_seconds"`
	CalmMaxGap      float64 `json:"calm_max_gap_seconds"`
	Reclaimed       int     `json:"reclaimed"` // partitions that a process took over from itself
	ReclaimedMaxGap float64 `json:"reclaimed_max_gap_seconds"`

	MovedGapP99      float64 `json:"moved_gap_p99_seconds"` // planned restarts
	MovedGapP50      float64 `json:"moved_gap_p50_seconds"`
	MovedGaps        int     `json:"moved_gaps"`
	Restarts         int     `json:"restarts"`
	MovedStages      Stages  `json:"moved_gap_stages_seconds"`
	StormMovedGapP50 float64 `json:"storm_moved_gap_p50_seconds"`
	StormMovedGapMax float64 `json:"storm_moved_gap_max_seconds"`

	KillP99OverTimeout float64 `json:"kill_p99_over_timeout"`
	KillP50OverTimeout float64 `json:"kill_p50_over_timeout"`
	Kills              int     `json:"kills"`
	KillsAtOnce        int     `json:"kills_at_once"`
	KillStages         Stages  `json:"kill_gap_stages_seconds"`
	KilledPartitions   int     `json:"killed_partitions"`

	Rejected      int64          `json:"rejected_stale_commits"`
	HandedOver    int64          `json:"handed_over"` // of these: of owners that went on until they were taken over
	EndedBackends int64          `json:"ended_backends"`
	Unsettled     int            `json:"unsettled"` // times the group did not settle in time
	Events        map[string]int `json:"events"`    // of the storm, by kind
	Longest       []span         `json:"longest_gaps"`

	Naive          *Tally `json:"naive,omitempty"`
	NaiveDoubled   int64  `json:"naive_doubled"`
	NaiveReplayed  int64  `json:"naive_replayed"`
	NaiveLost      int64  `json:"naive_lost"`
	NaiveReordered int64  `json:"naive_reordered"`
	NaiveRecords   int64  `json:"naive_records"`

	LoadAverage    string  `json:"load_average,omitempty"`
	LoadAverageEnd string  `json:"load_average_end,omitempty"`
	Seconds        float64 `json:"seconds"`
}

// span is a gap as it is printed.
type span struct {
	Class     string  `json:"class"`
	Partition int32   `json:"partition"`
	At        float64 `json:"at_seconds"` // since the start
	Seconds   float64 `json:"seconds"`
	Takeover  float64 `json:"until_takeover_seconds"`
	View      float64 `json:"loading_view_seconds"`
	From      int     `json:"from_member"`
	To        int     `json:"to_member"`
	Behind    string  `json:"behind"` // the event before it
}

// count holds tables against topics and reckons the figures.
func (p *play) count(ctx context.Context) (*Result, error) {
	r := &Result{
		Protocol: p.protocol, Members: p.members, Partitions: p.partitions, MaxBatch: p.batch, SessionSeconds: p.session.Seconds(),
		HeartbeatSeconds: p.heartbeat.Seconds(), EventsPerMinute: p.rate, StormSeconds: p.storm.Seconds(), KillsAtOnce: p.killsAtOnce, Seed: p.seed, Events: map[string]int{},
		LeastBacklog: p.watch.leastBacklog(), Unsettled: p.unsettled,
	}
	l, tally, err := p.tally(ctx, p.name, oursTable)
	if err != nil {
		return nil, err
	}
	r.Tally, r.Records, r.Keys = tally, l.records(), l.keys()
	if p.naiveRate > 0 {
		l, tally, err := p.tally(ctx, p.naiveTopic(), naiveTable)
		if err != nil {
			return nil, err
		}
		r.Naive, r.NaiveDoubled, r.NaiveReplayed, r.NaiveLost, r.NaiveReordered = &tally, tally.Doubled, tally.Replayed, tally.Lost, tally.Reordered
		r.NaiveRecords = l.records()
	}
	if p.trail, err = p.remember(ctx); err != nil {
		return nil, err
	}
	p.reckon(r)
	return r, nil
}

// reckon fills the figures that follow from the trail.
func (p *play) reckon(r *Result) {
	events := p.weather.done
	gaps := p.trail.gaps(events)
	r.Rejected, r.HandedOver, r.EndedBackends = p.trail.rejected, p.trail.handed, p.trail.ended
	var calmSeconds, calmApplied float64
	for _, ph := range p.phases {
		took, applied := ph.to.Sub(ph.from).Seconds(), float64(p.trail.applied(ph.from, ph.to))
		switch ph.name {
		case calm:
			calmSeconds, calmApplied = calmSeconds+took, calmApplied+applied
			r.CalmMaxGap = max(r.CalmMaxGap, quantile(seconds(within(gaps, unmoved, ph)), 1))
		case stormy:
			r.StormRecordsPerSecond = applied / took
			for _, e := range ph.events {
				r.Events[e.Kind]++
			}
			turned := seconds(within(gaps, moved, ph))
			r.StormMovedGapP50, r.StormMovedGapMax = quantile(turned, 0.5), quantile(turned, 1)
		case restarts:
			of := within(gaps, moved, ph)
			turned := seconds(of)
			r.MovedStages = stagesOf(of)
			r.MovedGapP50, r.MovedGapP99, r.MovedGaps, r.Restarts = quantile(turned, 0.5), quantile(turned, 0.99), len(turned), len(ph.events)
		case kills:
			back := p.trail.recoveries(ph, p.session)
			r.KillStages = stagesOf(within(gaps, moved, ph))
			r.KillP50OverTimeout, r.KillP99OverTimeout, r.Kills, r.KilledPartitions = quantile(back, 0.5), quantile(back, 0.99), len(ph.events), len(back)
		}
	}
	r.CalmRecordsPerSecond = calmApplied / calmSeconds
	r.ThroughputKept = r.StormRecordsPerSecond / r.CalmRecordsPerSecond
	stayed := seconds(touching(gaps, unmoved, events, p.session))
	r.UnmovedMaxGap, r.UnmovedP99Gap = quantile(stayed, 1), quantile(stayed, 0.99)
	again := seconds(touching(gaps, reclaimed, events, p.session))
	r.Reclaimed, r.ReclaimedMaxGap = len(again), quantile(again, 1)
	for _, class := range []string{unmoved, reclaimed, moved} {
		r.Longest = append(r.Longest, p.longest(touching(gaps, class, events, p.session), events)...)
	}
}

// longest are the five longest of some gaps.
func (p *play) longest(gaps []gap, events []*event) []span {
	slices.SortFunc(gaps, func(a, b gap) int { return cmp.Compare(b.seconds(), a.seconds()) })
	var all []span
	for _, g := range gaps[:min(5, len(gaps))] {
		s := span{
			Class: g.class, Partition: g.part, At: g.from.Sub(p.start).Seconds(), Seconds: g.seconds(), From: g.old.slot, To: g.new.slot,
			Takeover: g.taken.Sub(g.from).Seconds(), View: g.loaded.Sub(g.taken).Seconds(),
		}
		for _, e := range events {
			if e.At.Before(g.to) {
				s.Behind = fmt.Sprintf("%s of member %d at %.1f s", e.Kind, e.Slot, e.At.Sub(p.start).Seconds())
			}
		}
		all = append(all, s)
	}
	return all
}

// verdict is nil if every key has exactly one row, in order.
func (r *Result) verdict() error {
	if r.exact() {
		return nil
	}
	return fmt.Errorf("%s: the promise does not hold: %d lost, %d doubled, %d out of order, %d shadowed, %d unknown",
		r.Protocol, r.Lost, r.Doubled, r.Reordered, r.Shadowed, r.Unknown)
}

// report is one result a protocol.
type report []*Result

func (r report) verdict() error {
	var errs []error
	for _, one := range r {
		errs = append(errs, one.verdict())
	}
	return errors.Join(errs...)
}

// object is what is printed as JSON: the result, or the sums with one result each.
func (r report) object() any {
	if len(r) == 1 {
		return r[0]
	}
	all := struct {
		Lost      int64              `json:"lost"`
		Doubled   int64              `json:"doubled"`
		Reordered int64              `json:"reordered"`
		Protocols map[string]*Result `json:"protocols"`
	}{Protocols: map[string]*Result{}}
	for _, one := range r {
		all.Lost, all.Doubled, all.Reordered = all.Lost+one.Lost, all.Doubled+one.Doubled, all.Reordered+one.Reordered
		all.Protocols[one.Protocol] = one
	}
	return all
}

// rows are the table: a column a protocol.
func (r report) rows() [][]string {
	lines := []struct {
		name string
		cell func(*Result) string
	}{
		{"FIGURE", func(r *Result) string { return strings.ToUpper(r.Protocol) }},
		{"session timeout, heartbeat", func(r *Result) string { return fmt.Sprintf("%g s, %g s", r.SessionSeconds, r.HeartbeatSeconds) }},
		{"events of the storm", func(r *Result) string { return r.weather() }},
		{"records, distinct keys", func(r *Result) string { return fmt.Sprintf("%d, %d", r.Records, r.Keys) }},
		{"lost, doubled, reordered", func(r *Result) string { return fmt.Sprintf("%d, %d, %d", r.Lost, r.Doubled, r.Reordered) }},
		{"at-least-once: lost, doubled, of these read again", func(r *Result) string {
			if r.Naive == nil {
				return "not run"
			}
			return fmt.Sprintf("%d, %d, %d of %d records", r.NaiveLost, r.NaiveDoubled, r.NaiveReplayed, r.NaiveRecords)
		}},
		{"throughput kept", func(r *Result) string {
			return fmt.Sprintf("%.2f (%.0f of %.0f records/s)", r.ThroughputKept, r.StormRecordsPerSecond, r.CalmRecordsPerSecond)
		}},
		{"least backlog of a partition", func(r *Result) string { return fmt.Sprintf("%d records", r.LeastBacklog) }},
		{"unmoved partitions: longest gap", func(r *Result) string {
			return fmt.Sprintf("%.3f s (p99 %.3f s, calm %.3f s)", r.UnmovedMaxGap, r.UnmovedP99Gap, r.CalmMaxGap)
		}},
		{"reclaimed by their own process", func(r *Result) string { return fmt.Sprintf("%d, longest %.2f s", r.Reclaimed, r.ReclaimedMaxGap) }},
		{"planned restart: gap, p99", func(r *Result) string {
			return fmt.Sprintf("%.3f s (p50 %.3f s, %d of %d restarts)", r.MovedGapP99, r.MovedGapP50, r.MovedGaps, r.Restarts)
		}},
		{"of these: until taken over, view, first commit, p99", func(r *Result) string { return r.MovedStages.String() }},
		{"moved in the storm: gap, p50, max", func(r *Result) string {
			return fmt.Sprintf("%.2f s, %.2f s", r.StormMovedGapP50, r.StormMovedGapMax)
		}},
		{"kill -9 to first commit over session timeout, p99", func(r *Result) string {
			return fmt.Sprintf("%.2f (p50 %.2f, %d partitions of %d kills, %d at once)", r.KillP99OverTimeout, r.KillP50OverTimeout, r.KilledPartitions, r.Kills, r.KillsAtOnce)
		}},
		{"stale commits rejected, of these at a hand-over", func(r *Result) string { return fmt.Sprintf("%d, %d", r.Rejected, r.HandedOver) }},
		{"backends ended by a takeover", func(r *Result) string { return strconv.FormatInt(r.EndedBackends, 10) }},
		{"the group did not settle in time", func(r *Result) string { return fmt.Sprintf("%d times", r.Unsettled) }},
		{"load average before, behind", func(r *Result) string { return r.LoadAverage + ", " + r.LoadAverageEnd }},
		{"took", func(r *Result) string { return (time.Duration(r.Seconds) * time.Second).String() }},
	}
	rows := make([][]string, len(lines))
	for i, l := range lines {
		rows[i] = []string{l.name}
		for _, one := range r {
			rows[i] = append(rows[i], l.cell(one))
		}
	}
	return rows
}

func (s Stages) String() string {
	return fmt.Sprintf("%.2f s, %.2f s, %.2f s", s.TakeoverP99, s.ViewP99, s.CommitP99)
}

// weather says what the storm was made of.
func (r *Result) weather() string {
	var parts []string
	for _, k := range []string{join, leave, freeze, kill} {
		parts = append(parts, fmt.Sprintf("%d %s", r.Events[k], k))
	}
	return fmt.Sprintf("%s in %.0f s", strings.Join(parts, ", "), r.StormSeconds)
}
