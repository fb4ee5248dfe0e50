package processor

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/twmb/franz-go/pkg/kgo"

	"effectonce/pkg/decode"
	"effectonce/pkg/dedup"
	"effectonce/pkg/rebalance"
	"effectonce/pkg/sink"
	"effectonce/pkg/stream"
)

// Protocol is the consumer group protocol.
type Protocol string

// The group protocols.
const (
	Cooperative Protocol = "cooperative" // classic, cooperative-sticky; range while a member of the group knows nothing else
	Range       Protocol = "range"       // classic, eager
	Consumer    Protocol = "consumer"    // KIP-848; session and heartbeat are the broker's settings
)

// KeyMissing says what becomes of a record without the configured key.
type KeyMissing string

// What becomes of a record without its key.
const (
	KeyDeadLetter  KeyMissing = "dead_letter"
	KeyCoordinates KeyMissing = "coordinates" // recognised by topic, partition and offset only
)

// Growth says what becomes of a topic in scope partition that got more partitions: a
// key may come on two of them from then on.
type Growth string

// What becomes of a topic that grew.
const (
	GrowthStop  Growth = "stop"  // the partitions where it shows stop visibly
	GrowthWiden Growth = "widen" // the topic goes on in scope topic, with all of its keys
)

// Table is the reference sink: rows of one table. Columns are written in this order.
type Table struct {
	Schema, Name string
	Mode         sink.Mode
	Conflict     []string // upsert: the table's key columns
	Columns      []Column
}

// Column maps a source (see package decode) to a column.
type Column struct{ Name, Source string }

// Config is one pipeline. Exactly one of Table and Handler is set. Zero values
// mean the defaults named here.
type Config struct {
	Pipeline string
	Group    string   // default: Pipeline
	Topics   []string // by name
	Start    rebalance.Start

	Kafka        []kgo.Opt     // brokers, TLS, SASL; what concerns the group is set here over it
	Protocol     Protocol      // default Cooperative
	Dirty        bool          // read uncommitted records of Kafka transactions
	BlockedAfter time.Duration // how long an open transaction may hold back a partition before it is called blocked; default 1 min
	Session      time.Duration // default 45 s
	Rebalance    time.Duration // default 60 s
	Heartbeat    time.Duration // default 3 s
	Instance     string        // static membership: this process's own name in the group, kept over restarts; with the classic protocols only

	Postgres *pgxpool.Config // one database; pools of our own are made from it
	MaxConns int             // most connections this process may open; too few are refused; 0 is no limit
	Schema   string          // of our tables, default "effectonce"

	Key          []string          // sources of the business key; none: coordinates only
	KeyMissing   KeyMissing        // default KeyDeadLetter
	Scope        stream.Scope      // default stream.ScopePartition
	Partitioner  dedup.Partitioner // default dedup.Murmur2
	AllowNullKey bool              // records without a Kafka key are placed consistently by their producer

	Table          *Table
	Handler        sink.Func
	HandlerTimeout time.Duration // default 3 s, 2 s below the idle-in-transaction limit

	BatchRecords   int           // most records in a transaction, default 10,000
	BatchBytes     int64         // most bytes in a transaction, default 8 MiB
	BatchLinger    time.Duration // how long a batch below these waits for more, default 0
	BatchTime      time.Duration // most time of one transaction, from BEGIN to the answer of COMMIT, default 2 min; the group's limits have no part in it
	Inflight       int64         // most bytes polled and not committed, default 128 MiB
	DedupMemory    int64         // bytes for business keys in memory, default 256 MiB; what is beyond is sealed into Postgres behind filters; below 0 is no bound, nothing is sealed
	DedupRetention time.Duration // how far records' times may have come past a key's before it is forgotten; 0: for ever
	ShortRetention bool          // permit a DedupRetention below the topic's own: a replay may apply records again
	Cache          dedup.Cache   // filter images for a quick start after a takeover, such as Redis; the caller closes it; nil: none
	AuditRetention time.Duration // of the audit rows of sealed runs, default 7 days
	Committers     int           // default 2 a core, at most 8
	Grace          time.Duration // before a takeover ends our stuck backends, default 2 s
	StopAfter      int           // effects in a row that fail alone, default 20
	StalledAfter   time.Duration // how long a partition may stand still without a reason that is known, default 30 s; then the Kafka client is made anew
	DrainTime      time.Duration // most time from the end of ctx to the end of Run, default 20 s; what is in flight then is cut off
	OnReset        string        // warn (default), honour or fail
	OnGrowth       Growth        // default GrowthStop
	OnOutOfRange   string        // rebalance.Halt (default) or rebalance.AcceptLoss: the position lies outside the log
	OnTruncated    string        // rebalance.Halt (default) or rebalance.Rewind: the log was cut below the position
	Share          bool          // permit a group or (topic, table) that another pipeline uses

	Admin    string // address of /livez, /readyz and /metrics; empty: none
	Logger   zerolog.Logger
	Registry *prometheus.Registry // default: one of its own

	metrics  *metrics // of the run, however often it is opened
	rebuilds *rebuilds
}

func (c Config) withDefaults() Config {
	c.Group = cmp.Or(c.Group, c.Pipeline)
	c.Protocol = cmp.Or(c.Protocol, Cooperative)
	c.Session = cmp.Or(c.Session, 45*time.Second)
	c.Rebalance = cmp.Or(c.Rebalance, 60*time.Second)
	c.Heartbeat = cmp.Or(c.Heartbeat, 3*time.Second)
	c.BlockedAfter = cmp.Or(c.BlockedAfter, time.Minute)
	c.Schema = cmp.Or(c.Schema, "effectonce")
	c.KeyMissing = cmp.Or(c.KeyMissing, KeyDeadLetter)
	c.Scope = cmp.Or(c.Scope, stream.ScopePartition)
	c.Partitioner = cmp.Or(c.Partitioner, dedup.Murmur2)
	c.HandlerTimeout = cmp.Or(c.HandlerTimeout, 3*time.Second)
	c.BatchRecords = cmp.Or(c.BatchRecords, 10_000)
	c.BatchBytes = cmp.Or(c.BatchBytes, 8<<20)
	c.Inflight = cmp.Or(c.Inflight, 128<<20)
	c.DedupMemory = max(cmp.Or(c.DedupMemory, 256<<20), 0)
	c.AuditRetention = cmp.Or(c.AuditRetention, 7*24*time.Hour)
	c.Committers = cmp.Or(c.Committers, min(2*runtime.GOMAXPROCS(0), 8))
	c.Grace = cmp.Or(c.Grace, 2*time.Second)
	c.StopAfter = cmp.Or(c.StopAfter, 20)
	c.StalledAfter = cmp.Or(c.StalledAfter, 30*time.Second)
	c.DrainTime = cmp.Or(c.DrainTime, 20*time.Second)
	c.BatchTime = cmp.Or(c.BatchTime, 2*time.Minute)
	c.OnReset = cmp.Or(c.OnReset, "warn")
	c.OnGrowth = cmp.Or(c.OnGrowth, GrowthStop)
	c.OnOutOfRange = cmp.Or(c.OnOutOfRange, rebalance.Halt)
	c.OnTruncated = cmp.Or(c.OnTruncated, rebalance.Halt)
	if c.Registry == nil {
		c.Registry = prometheus.NewRegistry()
	}
	return c
}

// Validate returns all faults at once that can be named without a connection.
func (c Config) Validate() error {
	var faults []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			faults = append(faults, fmt.Errorf(format, args...))
		}
	}
	check(c.Pipeline != "", "pipeline: a name is required")
	check(len(c.Topics) > 0, "topics: at least one is required")
	check(c.Postgres != nil, "postgres: a pool configuration is required")
	check((c.Table == nil) != (c.Handler == nil), "sink: exactly one of Table and Handler is required")
	check(c.BatchRecords > 0 && c.BatchBytes > 0, "batch: records and bytes are positive")
	check(c.BatchLinger >= 0 && c.BatchLinger < time.Minute, "batch: linger is %s, at least 0 and below a minute", c.BatchLinger)
	check(c.BlockedAfter > 0, "blocked_after: %s is not positive", c.BlockedAfter)
	check(c.BatchTime > 0, "batch: time %s is not positive", c.BatchTime)
	check(c.StalledAfter > 0, "stalled_after: %s is not positive", c.StalledAfter)
	check(c.DrainTime > 0, "drain: %s is not positive", c.DrainTime)
	check(c.DedupRetention >= 0, "dedup.retention: %s is negative", c.DedupRetention)
	check(c.Inflight >= c.BatchBytes, "inflight: %d bytes are less than one batch of %d", c.Inflight, c.BatchBytes)
	check(slices.Contains([]string{"warn", "honour", "fail"}, c.OnReset), "on_external_reset: %q is not warn, honour or fail", c.OnReset)
	check(c.OnGrowth == GrowthStop || c.OnGrowth == GrowthWiden, "on_partition_growth: %q is not stop or widen", c.OnGrowth)
	check(c.OnOutOfRange == rebalance.Halt || c.OnOutOfRange == rebalance.AcceptLoss, "on_out_of_range: %q is not stop or accept_loss", c.OnOutOfRange)
	check(c.OnTruncated == rebalance.Halt || c.OnTruncated == rebalance.Rewind, "on_truncated: %q is not stop or rewind", c.OnTruncated)
	check(c.OnTruncated != rebalance.Rewind || len(c.Key) == 0 || c.KeyMissing != KeyCoordinates,
		"on_truncated: rewind takes a record without its key for the one that was at its offset before: it does not go with key_missing: coordinates")
	check(c.Scope == stream.ScopePartition || c.Scope == stream.ScopeTopic, "scope: %q is not partition or topic", c.Scope)
	check(c.Scope != stream.ScopeTopic || len(c.Key) > 0, "scope: topic is for a business key, none is configured")
	check(c.Heartbeat*3 <= c.Session, "heartbeat: %s is more than a third of the session timeout %s", c.Heartbeat, c.Session)
	check(c.Instance == "" || c.Protocol != Consumer, "instance: static membership is for the classic protocols: with protocol consumer each restart would wait for the session timeout")
	if _, err := c.sources(); err != nil {
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// sources are the columns' sources and behind them the key's.
func (c Config) sources() ([]decode.Source, error) {
	var faults []error
	var out []decode.Source
	add := func(what, text string) {
		s, err := decode.ParseSource(text)
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", what, err))
		}
		out = append(out, s)
	}
	if c.Table != nil {
		for _, col := range c.Table.Columns {
			add("column "+col.Name, col.Source)
		}
	}
	for _, k := range c.Key {
		add("key", k)
	}
	return out, errors.Join(faults...)
}

// keyText names the key rule for people.
func (p *Processor) keyText() string { return strings.Join(p.cfg.Key, " + ") }

// holder names this process beside the owner.
func holder() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown host"
	}
	return fmt.Sprintf("%s, pid %d", host, os.Getpid())
}
