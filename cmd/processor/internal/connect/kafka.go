package connect

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/cmd/processor/internal/config"
)

const (
	// dialTimeout bounds one dial of a broker or a database, TLS included.
	dialTimeout = 5 * time.Second
	// batchCap is the largest batch after decompression where none is configured.
	batchCap = 64 << 20
)

var errBatchCap = errors.New("kafka.max_decompressed_batch: Kafka has no batches of 2GiB or more")

// Kafka returns the options that reach the brokers. What concerns the group is
// not among them. A batch that would decompress past the configured size stops
// its partition with *kgo.ErrDecompressTooLarge before the memory is taken. Every
// connection, and every re-authentication the brokers ask for, reads the client
// certificate and the token file again, or takes a token that is still fresh.
func Kafka(cfg config.Kafka) ([]kgo.Opt, error) {
	batch := cmp.Or(cfg.MaxDecompressedBatch.Bytes(), batchCap)
	if batch > math.MaxInt32 {
		return nil, errBatchCap
	}
	opts := []kgo.Opt{
		kgo.SeedBrokers(cfg.Brokers...),
		kgo.ClientID("effectonce"),
		kgo.DialTimeout(dialTimeout),
		kgo.MaxDecompressBatchBytes(int(batch)),
	}
	if cfg.TLS.Enabled {
		secure, err := clientTLS(cfg.TLS)
		if err != nil {
			return nil, fmt.Errorf("kafka.tls: %w", err)
		}
		opts = append(opts, kgo.DialTLSConfig(secure))
	}
	mechanism, err := authentication(cfg)
	if err != nil {
		return nil, fmt.Errorf("kafka.sasl: %w", err)
	}
	if mechanism != nil {
		opts = append(opts, kgo.SASL(mechanism))
	}
	return opts, nil
}
