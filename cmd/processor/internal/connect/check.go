package connect

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// ErrTooOld says that the other side answers but is of a release this program
// cannot work with. Waiting does not help.
var ErrTooOld = errors.New("is too old")

// Kafka 3.1 is the first whose Metadata and Fetch both speak of topics by id.
const (
	metadataWithIDs = 12
	fetchWithIDs    = 13
)

// CheckKafka reaches the cluster, authenticates, and returns ErrTooOld when a
// broker is older than 3.1.
func CheckKafka(ctx context.Context, client *kgo.Client) error {
	seeds, _ := client.OptValue(kgo.SeedBrokers).([]string)
	at := "kafka " + strings.Join(seeds, ",")
	// ListBrokers needs an authenticated connection, ApiVersions does not.
	admin := kadm.NewClient(client)
	if _, err := admin.ListBrokers(ctx); err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	brokers, err := admin.ApiVersions(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	for _, b := range brokers.Sorted() {
		if b.Err != nil {
			return fmt.Errorf("%s: broker %d: %w", at, b.NodeID, b.Err)
		}
		metadata, _ := b.KeyMaxVersion(kmsg.Metadata.Int16())
		fetch, _ := b.KeyMaxVersion(kmsg.Fetch.Int16())
		if metadata < metadataWithIDs || fetch < fetchWithIDs {
			return fmt.Errorf("%s: broker %d %w: it seems to be Kafka %s, and topic ids need 3.1", at, b.NodeID, ErrTooOld, b.VersionGuess())
		}
	}
	return nil
}

// oldestPostgres is the first release we work with, as server_version_num.
const oldestPostgres = 140_000

// CheckPostgres reaches the database, authenticates, and returns ErrTooOld when
// it is older than 14.
func CheckPostgres(ctx context.Context, cfg *pgxpool.Config) error {
	c := cfg.ConnConfig
	at := "postgres " + net.JoinHostPort(c.Host, strconv.Itoa(int(c.Port)))
	conn, err := pgx.ConnectConfig(ctx, c.Copy())
	if err != nil {
		return fmt.Errorf("%s: %w", at, err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }() // nothing is left to lose
	var version int
	var name string
	err = conn.QueryRow(ctx, `SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4,
		pg_catalog.current_setting('server_version')`).Scan(&version, &name)
	switch {
	case err != nil:
		return fmt.Errorf("%s: read version: %w", at, err)
	case version < oldestPostgres:
		return fmt.Errorf("%s %w: it is PostgreSQL %s, and 14 is needed", at, ErrTooOld, name)
	}
	return nil
}
