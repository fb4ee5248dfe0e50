// Package run is the verb that runs a pipeline, and the wiring from the settings
// to the library.
package run

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"effectonce/cmd/processor/internal/config"
	"effectonce/cmd/processor/internal/connect"
	"effectonce/pkg/dedup"
	"effectonce/pkg/processor"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// Pipeline turns settings into the library's configuration.
func Pipeline(c config.Config, logger zerolog.Logger) (processor.Config, error) {
	kafka, err := connect.Kafka(c.Kafka)
	if err != nil {
		return processor.Config{}, fmt.Errorf("kafka: %w", err)
	}
	postgres, err := connect.Postgres(c.Postgres, c.Pipeline)
	if err != nil {
		return processor.Config{}, fmt.Errorf("postgres: %w", err)
	}
	limit := 0
	if strings.Contains(postgres.ConnString(), "pool_max_conns") { // pgx's own default is nobody's wish
		limit = int(postgres.MaxConns)
	}
	return processor.Config{
		MaxConns:       limit,
		Pipeline:       c.Pipeline,
		Group:          c.Kafka.Group,
		Topics:         c.Kafka.Topics,
		Start:          rebalance.Start{Kind: c.Kafka.Start.Mode, Time: c.Kafka.Start.Time},
		Kafka:          kafka,
		Protocol:       processor.Protocol(c.Kafka.Protocol),
		Dirty:          c.Kafka.Isolation == "read_uncommitted",
		BlockedAfter:   time.Duration(c.Kafka.BlockedAfter),
		Session:        time.Duration(c.Kafka.SessionTimeout),
		Rebalance:      time.Duration(c.Kafka.RebalanceTimeout),
		Heartbeat:      time.Duration(c.Kafka.HeartbeatInterval),
		Instance:       c.Kafka.InstanceID,
		Postgres:       postgres,
		Schema:         c.Postgres.Schema,
		Key:            c.Key,
		KeyMissing:     processor.KeyMissing(c.KeyMissing),
		Scope:          stream.Scope(c.Scope),
		Partitioner:    dedup.Partitioner(c.Partitioner),
		AllowNullKey:   c.NullKafkaKey == "allow",
		Table:          table(c.Sink.Table),
		BatchRecords:   c.Batch.MaxRecords,
		BatchBytes:     int64(c.Batch.MaxBytes),
		BatchLinger:    time.Duration(c.Batch.Linger),
		BatchTime:      time.Duration(c.Batch.Timeout),
		StalledAfter:   time.Duration(c.StalledAfter),
		DrainTime:      time.Duration(c.ShutdownGrace),
		Inflight:       int64(c.InflightBytes),
		DedupMemory:    memory(c.Dedup.Memory),
		DedupRetention: time.Duration(c.Dedup.Retention),
		ShortRetention: c.Dedup.ShortRetention,
		AuditRetention: time.Duration(c.Audit.Retention),
		Committers:     c.Committers,
		Grace:          time.Duration(c.Takeover.Grace),
		StopAfter:      c.DeadLetters.StopAfter,
		OnReset:        c.OnExternalReset,
		OnGrowth:       processor.Growth(c.OnGrowth),
		OnOutOfRange:   c.OnOutOfRange,
		OnTruncated:    c.OnTruncated,
		Admin:          c.Admin.Listen,
		Logger:         logger,
	}, nil
}

// memory is the bound as processor.Config has it: there 0 is the default.
func memory(s config.Size) int64 {
	if s == 0 {
		return -1
	}
	return int64(s)
}

// table orders the columns by name: a map has no order of its own.
func table(t config.Table) *processor.Table {
	out := &processor.Table{Schema: t.Schema, Name: t.Name, Mode: sink.Mode(t.Mode), Conflict: t.Conflict}
	for _, name := range slices.Sorted(maps.Keys(t.Columns)) {
		out.Columns = append(out.Columns, processor.Column{Name: name, Source: t.Columns[name]})
	}
	return out
}
