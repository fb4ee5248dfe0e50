package processor

import (
	"github.com/prometheus/client_golang/prometheus"

	"effectonce/pkg/dedup"
)

// metrics are the counters of one pipeline. No label comes from a record.
type metrics struct {
	records   *prometheus.CounterVec // outcome: applied, duplicate, dead
	commits   *prometheus.CounterVec // outcome: committed, or the verdict
	unknown   *prometheus.CounterVec // outcome of an unknown COMMIT
	took      prometheus.Histogram
	takeovers prometheus.Counter
	fenced    prometheus.Counter
	wentBack  prometheus.Counter
	full      prometheus.Counter
	lookups   *prometheus.CounterVec   // outcome: negative, confirmed, false_positive
	seals     *prometheus.HistogramVec // what: seal, compact
	rebuilds  prometheus.Histogram
	expired   prometheus.Counter
	lost      *prometheus.CounterVec // cause: out_of_range, truncated
	rebuilt   prometheus.Counter

	applied, duplicate, dead, ok prometheus.Counter
}

func newMetrics() *metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "effectonce_" + name, Help: help})
	}
	vec := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "effectonce_" + name, Help: help}, []string{"outcome"})
	}
	m := &metrics{
		records: vec("records_total", "Records committed, by outcome: applied, duplicate or dead."),
		commits: vec("commits_total", "Transactions, by outcome: committed, or the verdict on their error."),
		unknown: vec("unknown_commits_total", "COMMITs without an answer, by what the position row said."),
		took: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "effectonce_commit_duration_seconds", Help: "From BEGIN to the answer of COMMIT.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}),
		takeovers: counter("takeovers_total", "Claims made."),
		fenced:    counter("fenced_total", "Claims given up because Postgres refused them or memory differed."),
		wentBack:  counter("differences_total", "Claims whose row differed from memory when the watch compared them."),
		full:      counter("inflight_full_total", "Turns of the poll loop that waited for bytes in flight."),
		rebuilt:   counter("client_rebuilds_total", "Kafka clients made anew because a partition stood still."),
		expired:   counter("expired_keys_total", "Business keys forgotten because records have come further than the retention."),
	}
	m.lost = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "effectonce_accepted_loss_offsets_total", Help: "Offsets that were gone from Kafka and that a policy went on without.",
	}, []string{"cause"})
	m.lookups = vec("lookups_total", "Keys that were looked for in sealed segments: negative by the gate, confirmed as applied before, or a false positive of the gate.")
	m.seals = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "effectonce_seal_duration_seconds", Help: "Sealing runs into a segment, and merging segments.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
	}, []string{"what"})
	m.rebuilds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "effectonce_filter_rebuild_seconds", Help: "Rebuilding the filter over a log's segments.",
		Buckets: prometheus.ExponentialBuckets(0.01, 2, 14),
	})
	m.applied, m.duplicate, m.dead = m.records.WithLabelValues("applied"), m.records.WithLabelValues("duplicate"), m.records.WithLabelValues("dead")
	m.ok = m.commits.WithLabelValues("committed")
	return m
}

func (m *metrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.records, m.commits, m.unknown, m.took, m.takeovers, m.fenced, m.wentBack, m.full, m.lookups, m.seals, m.rebuilds, m.expired, m.lost, m.rebuilt}
}

// register adds collectors and returns what takes them out again.
func register(reg *prometheus.Registry, cs ...prometheus.Collector) (end func()) {
	reg.MustRegister(cs...)
	return func() {
		for _, c := range cs {
			reg.Unregister(c)
		}
	}
}

func (m *metrics) committed(r dedup.Range) {
	m.applied.Add(float64(r.Applied))
	m.duplicate.Add(float64(r.Duplicate))
	m.dead.Add(float64(r.Dead))
}

// looked counts what became of a fold's keys that the gate could not decide.
func (m *metrics) looked(f *dedup.Fold) {
	m.lookups.WithLabelValues("negative").Add(float64(f.Negative))
	m.lookups.WithLabelValues("confirmed").Add(float64(f.Confirmed))
	m.lookups.WithLabelValues("false_positive").Add(float64(f.Asked - f.Confirmed))
}

func (m *metrics) failed(v Verdict) { m.commits.WithLabelValues(string(v)).Inc() }

func (m *metrics) handedOver() { m.commits.WithLabelValues("handed_over").Inc() }
