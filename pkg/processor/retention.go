package processor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
)

// checkRetention refuses a retention of keys that is shorter than that of a topic's
// records: a replay would bring records whose keys have expired, and apply them
// again. ShortRetention turns the refusal into a warning.
func (p *Processor) checkRetention(ctx context.Context, adm *kadm.Client) error {
	if p.cfg.DedupRetention == 0 || len(p.cfg.Key) == 0 {
		return nil
	}
	configs, err := adm.DescribeTopicConfigs(ctx, p.cfg.Topics...)
	if err != nil {
		return fmt.Errorf("kafka: topic configuration: %w", err)
	}
	for _, c := range configs {
		err := c.Err
		if err == nil {
			err = tooShort(p.cfg.DedupRetention, c)
		}
		switch {
		case err == nil:
		case transient(err):
			return fmt.Errorf("kafka: configuration of topic %q: %w", c.Name, err)
		case p.cfg.ShortRetention:
			p.logger.Warn().Str("topic", c.Name).Err(err).Msg("keys may expire before the records they belong to: a replay of these applies them again")
		default:
			return fmt.Errorf("%w: topic %q: %w: raise dedup.retention (0 keeps keys for ever), or set "+
				"dedup.allow_short_retention: true if nothing older is ever sent or replayed", ErrConfig, c.Name, err)
		}
	}
	return nil
}

// tooShort is the error of a retention that the topic's records outlive.
func tooShort(retention time.Duration, c kadm.ResourceConfig) error {
	value := func(key string) string {
		i := slices.IndexFunc(c.Configs, func(c kadm.Config) bool { return c.Key == key })
		if i < 0 {
			return ""
		}
		return c.Configs[i].MaybeValue()
	}
	if policy := value("cleanup.policy"); !strings.Contains(policy, "delete") {
		return fmt.Errorf("dedup.retention is %s, and with cleanup.policy %s records stay for ever", retention, policy)
	}
	ms, err := strconv.ParseInt(value("retention.ms"), 10, 64)
	switch {
	case err != nil:
		return fmt.Errorf("its retention.ms is not known: %w", err)
	case ms < 0:
		return fmt.Errorf("dedup.retention is %s, and with retention.ms %d records stay for ever", retention, ms)
	case retention.Milliseconds() < ms:
		return fmt.Errorf("dedup.retention is %s, and with retention.ms %d records stay for %s", retention, ms, time.Duration(ms)*time.Millisecond)
	}
	return nil
}
