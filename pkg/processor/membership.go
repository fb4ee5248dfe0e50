package processor

import (
	"errors"
	"fmt"
	"time"

	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"
)

// membership are the client options of the group protocol. The range balancer stands
// behind the others, so that a member that knows nothing else may be in the group
// while its protocol is changed: all members agree on what all of them know.
func (p *Processor) membership() []kgo.Opt {
	opts := []kgo.Opt{
		kgo.SessionTimeout(p.cfg.Session), kgo.RebalanceTimeout(p.cfg.Rebalance), kgo.HeartbeatInterval(p.cfg.Heartbeat),
	}
	if p.cfg.Instance != "" {
		opts = append(opts, kgo.InstanceID(p.cfg.Instance))
	}
	sticky, eager := kgo.CooperativeStickyBalancer(), p.group.Teller(kgo.RangeBalancer())
	switch p.cfg.Protocol {
	case Range:
		return append(opts, kgo.Balancers(eager))
	case Consumer: // the client knows the broker's assignor by the balancer's type
		return append(opts, kgo.Balancers(sticky, eager), kgo.ServerSideBalancer())
	default:
		return append(opts, kgo.Balancers(p.group.Teller(sticky), eager))
	}
}

// joined tells which protocol the group works by. A broker or a group that does not
// know the configured one is no error: the client falls back without a word.
func (p *Processor) joined(protocol string) {
	level, msg := zerolog.InfoLevel, "joined the group"
	if p.cfg.Protocol == Consumer && protocol != string(Consumer) {
		level, msg = zerolog.WarnLevel, "joined the group by the classic protocol: the broker does not serve protocol: consumer"
	}
	p.logger.WithLevel(level).Str("protocol", protocol).Str("configured", string(p.cfg.Protocol)).Msg(msg)
}

// member reports what keeps this process out of the group.
func (p *Processor) member(now time.Time) error {
	s := p.group.Session()
	switch {
	case s.Err != nil && now.Sub(s.Since) > patience:
		return fmt.Errorf("outside the group since %s: %s", s.Since.Format(time.RFC3339), oneLine(s.Err))
	case now.Sub(s.Beat) > max(p.cfg.Session, p.cfg.Rebalance): // a join waits for the other members as long
		return fmt.Errorf("%w since %s", errNoHeartbeat, s.Beat.Format(time.RFC3339))
	}
	return nil
}

var errNoHeartbeat = errors.New("the group has answered no heartbeat")
