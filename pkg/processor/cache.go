package processor

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"effectonce/internal/pgtx"
)

// offer stores the filters that were made in the cache. It comes last, behind all
// that matters, and its errors stop nothing: a later rebuild reads blocks.
func (k keeper) offer(ctx context.Context) error {
	err := k.p.log.Offer(ctx, k.conn.Conn(), k.p.settings, k.v)
	switch {
	case err == nil, ctx.Err() != nil:
	case pgtx.Code(err) != "":
		k.p.aboutScope(k.scope).Warn().Err(err).Msg("filter images not stored: is the schema migrated and granted?")
	default:
		k.p.aboutScope(k.scope).Debug().Err(err).Msg("filter images not stored")
	}
	return nil //nolint:nilerr // told above
}

// cacheCollector shows how often the cache helped.
type cacheCollector struct{ a *admin }

var filterCache = prometheus.NewDesc("effectonce_filter_cache_total",
	"Filter images of segments and gates: taken from the cache, not there, not what Postgres says they are, failed, stored.", []string{"outcome"}, nil)

// Describe implements prometheus.Collector.
func (c *cacheCollector) Describe(ch chan<- *prometheus.Desc) { ch <- filterCache }

// Collect implements prometheus.Collector.
func (c *cacheCollector) Collect(ch chan<- prometheus.Metric) {
	p, _ := c.a.processor()
	if p == nil || p.cfg.Cache == nil {
		return
	}
	s := p.log.CacheStats()
	for outcome, n := range map[string]int64{"hit": s.Hits, "miss": s.Misses, "rejected": s.Rejected, "error": s.Errors, "stored": s.Stores} {
		ch <- prometheus.MustNewConstMetric(filterCache, prometheus.CounterValue, float64(n), outcome)
	}
}
