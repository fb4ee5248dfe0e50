package run

import (
	"context"

	"github.com/rs/zerolog"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/pkg/dedup/rediscache"
)

// openCache makes the filter cache, nil if none is configured. A Redis that does not
// answer is a warning: the pipeline works without it, and with it once it comes.
func openCache(ctx context.Context, c config.Redis, logger zerolog.Logger) (*rediscache.Cache, error) {
	cfg, err := connect.Redis(c)
	if err != nil || len(cfg.Addresses) == 0 {
		return nil, err
	}
	logger = logger.With().Str("part", "redis").Logger()
	rediscache.LogTo(func(text string) { logger.Debug().Msg(text) })
	cfg.Rests = func(resting bool) {
		if resting {
			logger.Warn().Msg("redis failed several times and is left alone for a while: filters are made from Postgres")
			return
		}
		logger.Info().Msg("redis works again")
	}
	cache, err := rediscache.New(cfg)
	if err != nil {
		return nil, err
	}
	if err := cache.Check(ctx); err != nil {
		logger.Warn().Err(err).Msg("redis is of no use now: filters are made from Postgres until it is")
	}
	return cache, nil
}
