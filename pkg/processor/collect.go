package processor

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/stream"
)

// standingsCollector shows the partitions held as they stand when asked.
type standingsCollector struct{ a *admin }

var (
	partitionLabels = []string{"topic", "partition"}
	lagRecords      = prometheus.NewDesc("effectonce_lag_records", "Offsets between the position and the last stable offset.", partitionLabels, nil)
	lagSeconds      = prometheus.NewDesc("effectonce_lag_seconds", "Age of the newest applied record while there is lag, else 0.", partitionLabels, nil)
	blockedRecords  = prometheus.NewDesc("effectonce_blocked_records", "Offsets behind the last stable offset while an open transaction has long held them back and everything before is applied, else 0.", partitionLabels, nil)
	heldState       = prometheus.NewDesc("effectonce_partitions", "Partitions held, by state.", []string{"state"}, nil)
	stoppedCause    = prometheus.NewDesc("effectonce_partition_stopped", "1 for a stopped partition, with its cause.", []string{"topic", "partition", "cause"}, nil)
	lostOffset      = prometheus.NewDesc("effectonce_lost_offset", "The first and the last offset that is gone from under the position of a stopped partition.", []string{"topic", "partition", "edge"}, nil)
	stalled         = prometheus.NewDesc("effectonce_partition_stalled", "1 for a partition that stands still though nothing that is known keeps it.", []string{"topic", "partition", "cause"}, nil)
	groupProtocol   = prometheus.NewDesc("effectonce_group_protocol", "1 for the group protocol in force: cooperative-sticky, range, consumer, or classic for what the client fell back to.", []string{"protocol"}, nil)
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
		lagRecords, lagSeconds, blockedRecords, heldState, stoppedCause, lostOffset, inflightBytes, viewKeys, viewBytes, viewWhole, viewSegments, viewFill, viewReady, oldestKey, stalled, groupProtocol,
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
	for _, h := range p.group.Held() {
		states[h.State]++
		number := strconv.Itoa(int(h.Name.Number))
		if h.State == rebalance.Stopped {
			gauge(stoppedCause, 1, h.Name.Topic, number, h.Cause.Code)
			if lost := h.Cause.Lost; lost.To > lost.From {
				gauge(lostOffset, float64(lost.From), h.Name.Topic, number, "first")
				gauge(lostOffset, float64(lost.To-1), h.Name.Topic, number, "last")
			}
		}
		s, ok := standings[h.Name]
		if !ok {
			continue
		}
		if t, ok := p.tails.of(h.Name); ok {
			lag := t.lag(s.claim.Next)
			gauge(lagRecords, float64(lag), h.Name.Topic, number)
			age := 0.0
			if lag > 0 && !s.newest.IsZero() {
				age = max(time.Since(s.newest).Seconds(), 0)
			}
			gauge(lagSeconds, age, h.Name.Topic, number)
			behind := int64(0)
			if t.blocked(s.claim.Next, p.cfg.BlockedAfter, time.Now()) {
				behind = t.end - t.stable
			}
			gauge(blockedRecords, float64(behind), h.Name.Topic, number)
		}
	}
	names, stalls := p.watchdog.stalls()
	for _, n := range names {
		gauge(stalled, 1, n.Topic, strconv.Itoa(int(n.Number)), string(stalls[n].why))
	}
	if protocol := p.group.Session().Protocol; protocol != "" {
		gauge(groupProtocol, 1, protocol)
	}
	for s, n := range states {
		gauge(heldState, float64(n), string(s))
	}
	gauge(inflightBytes, float64(bytes))
	collectViews(gauge, standings)
}

// collectViews adds the views up, each once: partitions may share one.
func collectViews(gauge func(d *prometheus.Desc, v float64, labels ...string), standings map[rebalance.Name]standing) {
	views := map[stream.Partition]dedup.Stats{}
	for _, s := range standings {
		views[s.scope] = s.view
	}
	var sum dedup.Stats
	ready := 1.0
	for _, v := range views {
		sum.Keys += v.Keys
		sum.Sealed += v.Sealed
		sum.Bytes += v.Bytes
		sum.Whole += v.Whole
		sum.Segments += v.Segments
		sum.Gate += v.Gate
		sum.Capacity += v.Capacity
		if !v.Oldest.IsZero() && (sum.Oldest.IsZero() || v.Oldest.Before(sum.Oldest)) {
			sum.Oldest = v.Oldest
		}
		if v.Segments > 0 {
			ready = min(ready, v.Ready)
		}
	}
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
