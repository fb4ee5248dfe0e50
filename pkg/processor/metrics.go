package processor

import (
	"context"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
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
		expired:   counter("expired_keys_total", "Business keys forgotten because records have come further than the retention."),
	}
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
	return []prometheus.Collector{m.records, m.commits, m.unknown, m.took, m.takeovers, m.fenced, m.wentBack, m.full, m.lookups, m.seals, m.rebuilds, m.expired}
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

// standingsCollector shows the partitions held as they stand when asked.
type standingsCollector struct{ a *admin }

var (
	partitionLabels = []string{"topic", "partition"}
	lagRecords      = prometheus.NewDesc("effectonce_lag_records", "Offsets between the position and the last stable offset.", partitionLabels, nil)
	lagSeconds      = prometheus.NewDesc("effectonce_lag_seconds", "Age of the newest applied record while there is lag, else 0.", partitionLabels, nil)
	heldState       = prometheus.NewDesc("effectonce_partitions", "Partitions held, by state.", []string{"state"}, nil)
	stoppedCause    = prometheus.NewDesc("effectonce_partition_stopped", "1 for a stopped partition, with its cause.", []string{"topic", "partition", "cause"}, nil)
	inflightBytes   = prometheus.NewDesc("effectonce_inflight_bytes", "Bytes polled and not committed.", nil, nil)
	viewKeys        = prometheus.NewDesc("effectonce_view_keys", "Business keys of the logs held: exact in memory, or sealed.", []string{"where"}, nil)
	viewBytes       = prometheus.NewDesc("effectonce_view_bytes", "Memory of the views: exact sets, filters and segments held whole.", nil, nil)
	viewWhole       = prometheus.NewDesc("effectonce_view_whole_bytes", "Of these, segments held whole because old records repeat them.", nil, nil)
	viewSegments    = prometheus.NewDesc("effectonce_view_segments", "Live segments of the logs held.", nil, nil)
	viewFill        = prometheus.NewDesc("effectonce_view_filter_fill", "Keys in the filters over the keys they were made for.", nil, nil)
	viewReady       = prometheus.NewDesc("effectonce_view_filter_ready", "Share of the key space in which filters answer, the least of the logs held; the rest is looked up in Postgres.", nil, nil)
	oldestKey       = prometheus.NewDesc("effectonce_oldest_key_seconds", "Age, by the records' times, of the oldest sealed business key of the logs held.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c *standingsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		lagRecords, lagSeconds, heldState, stoppedCause, inflightBytes, viewKeys, viewBytes, viewWhole, viewSegments, viewFill, viewReady, oldestKey,
	} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *standingsCollector) Collect(ch chan<- prometheus.Metric) {
	p, _ := c.a.processor()
	if p == nil { // being opened
		return
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	states := map[rebalance.State]int{rebalance.Running: 0, rebalance.Waiting: 0, rebalance.Stopped: 0}
	standings, bytes := p.list.standings()
	var sum dedup.Stats
	ready := 1.0
	counted := map[stream.Partition]bool{} // scopes: partitions may share one
	for _, h := range p.group.Held() {
		states[h.State]++
		number := strconv.Itoa(int(h.Name.Number))
		if h.State == rebalance.Stopped {
			gauge(stoppedCause, 1, h.Name.Topic, number, h.Cause.Code)
		}
		s, ok := standings[h.Name]
		if !ok {
			continue
		}
		if !counted[s.scope] {
			counted[s.scope] = true
			sum.Keys += s.view.Keys
			sum.Sealed += s.view.Sealed
			sum.Bytes += s.view.Bytes
			sum.Whole += s.view.Whole
			if old := s.view.Oldest; !old.IsZero() && (sum.Oldest.IsZero() || old.Before(sum.Oldest)) {
				sum.Oldest = old
			}
			sum.Segments += s.view.Segments
			sum.Gate += s.view.Gate
			sum.Capacity += s.view.Capacity
			if s.view.Segments > 0 {
				ready = min(ready, s.view.Ready)
			}
		}
		if end, ok := p.health.end(h.Name); ok {
			lag := max(end-s.claim.Next, 0)
			gauge(lagRecords, float64(lag), h.Name.Topic, number)
			age := 0.0
			if lag > 0 && !s.newest.IsZero() {
				age = max(time.Since(s.newest).Seconds(), 0)
			}
			gauge(lagSeconds, age, h.Name.Topic, number)
		}
	}
	for s, n := range states {
		gauge(heldState, float64(n), string(s))
	}
	gauge(inflightBytes, float64(bytes))
	gauge(viewKeys, float64(sum.Keys), "memory")
	gauge(viewKeys, float64(sum.Sealed), "sealed")
	gauge(viewBytes, float64(sum.Bytes))
	gauge(viewWhole, float64(sum.Whole))
	gauge(viewSegments, float64(sum.Segments))
	if !sum.Oldest.IsZero() {
		gauge(oldestKey, time.Since(sum.Oldest).Seconds())
	}
	gauge(viewReady, ready)
	gauge(viewFill, float64(sum.Gate)/float64(max(sum.Capacity, 1)))
}

const measureEvery = 5 * time.Second

// measure asks Kafka for the last stable offsets: a high watermark comes only with
// records, and behind an open transaction polls are silent.
func (p *Processor) measure(ctx context.Context) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	adm := kadm.NewClient(p.client)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		limited, cancel := context.WithTimeout(ctx, measureEvery)
		listed, err := adm.ListCommittedOffsets(limited, p.cfg.Topics...)
		cancel()
		if err != nil {
			continue // the lag keeps its last value; fetching reports what is wrong
		}
		ends := map[rebalance.Name]int64{}
		listed.Each(func(o kadm.ListedOffset) {
			if o.Err == nil {
				ends[rebalance.Name{Topic: o.Topic, Number: o.Partition}] = o.Offset
			}
		})
		p.health.ends(ends)
	}
}
