package cli

import (
	"context"
	"strings"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/cmd/processor/internal/exit"
	"effectonce/pkg/dedup/rediscache"
)

// checkRedis asks the filter cache, if there is one, for all that a pipeline will.
// That it cannot is no error: a pipeline does without.
func checkRedis(ctx context.Context, l *config.Loaded, r *report) {
	cfg, err := connect.Redis(l.Config.Redis)
	if err != nil {
		r.fail("redis", exit.Config, err)
		return
	}
	if len(cfg.Addresses) == 0 {
		return
	}
	rediscache.LogTo(func(string) {}) // the error says it
	cache, err := rediscache.New(cfg)
	if err != nil {
		r.fail("redis", exit.Config, err)
		return
	}
	defer func() { _ = cache.Close() }() // only asked
	at := strings.Join(cfg.Addresses, ", ")
	if err := cache.Check(ctx); err != nil {
		r.warn("redis", at+": "+err.Error())
		return
	}
	r.fine("redis", "%s answers", at)
}
