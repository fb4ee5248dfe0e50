package config

import (
	"net"
	"slices"
)

// Warning is something that works, but not the way one might think.
type Warning struct {
	Path    string `json:"setting"`
	Where   string `json:"where"`
	Message string `json:"message"`
}

// Warnings looks at the settings alone; what only the broker or the database
// knows is asked elsewhere.
func (l *Loaded) Warnings() []Warning {
	c := &l.Config
	var found []Warning
	warn := func(when bool, path, message string) {
		if when {
			found = append(found, Warning{Path: path, Where: l.Origin(path).String(), Message: message})
		}
	}
	warn(len(c.Key) == 0, "key", "no business key: a record is recognised by its coordinates only, "+
		"so a producer that sends the same thing twice has two effects")
	warn(len(c.Key) > 0 && c.KeyMissing == Coordinates, "key_missing",
		"a record without its key is recognised by its coordinates only")
	warn(len(c.Key) > 0 && c.Scope == "partition" && c.Partitioner == "none", "partitioner",
		"no check that a key always comes on one partition: a key that changes its partition, as after adding partitions, has one effect on each")
	warn(len(c.Key) > 0 && c.NullKafkaKey == "allow", "null_kafka_key",
		"a record without a Kafka key may come on any partition: its business key has one effect on each")
	warn(c.Scope == "topic" && (l.Origin("partitioner").Kind != FromDefault || c.NullKafkaKey == "allow"), "scope",
		"partitioner and null_kafka_key have no effect with scope: topic")
	warn(len(c.Key) == 0 && c.NullKafkaKey == "allow", "null_kafka_key", "has no effect without a business key")
	warn(len(c.Key) == 0 && c.Dedup.Retention > 0, "dedup.retention", "has no effect without a business key")
	warn(c.Dedup.Retention == 0 && c.Dedup.ShortRetention, "dedup.allow_short_retention", "has no effect: keys are kept for ever")
	t := c.Sink.Table
	warn(t.Mode == "upsert" && c.upsertsOwnKey(), "sink.table.conflict",
		"the table's key is the business key: each key is applied once, so only its first record is ever written and no row is updated")
	warn(c.Kafka.Isolation == "read_uncommitted", "kafka.isolation", "records of aborted Kafka transactions are applied too")
	warn(c.OnExternalReset == "honour" && len(c.Key) == 0, "on_external_reset",
		"without a business key a reset to an earlier offset stops its partition: it would apply records again")
	warn(c.Kafka.Protocol == "consumer" && l.Origin("kafka.session_timeout").Kind != FromDefault, "kafka.session_timeout",
		"has no effect with protocol: consumer: the broker decides")
	warn(c.Kafka.SASL.AllowPlaintext && !c.Kafka.TLS.Enabled && c.Kafka.SASL.Mechanism != "", "kafka.sasl.allow_plaintext",
		"the secret crosses the network readable")
	warn(c.Postgres.SSLMode == "disable" && !isLoopback(c.Postgres.Host), "postgres.sslmode", "the connection to the database is not encrypted")
	warn(!c.Redis.Password.IsZero() && !c.Redis.TLS.Enabled && !allLocal(c.Redis.Addresses), "redis.password",
		"the password crosses the network readable: set redis.tls.enabled: true")
	warn(len(c.Redis.Addresses) > 0 && c.Dedup.Memory == 0, "redis", "has no effect without dedup.memory: nothing is sealed, so there is no filter to cache")
	host, _, _ := net.SplitHostPort(c.Admin.Listen)
	warn(c.Admin.AllowRemote && !isLoopback(host), "admin.listen", "anyone who reaches this address reads metrics and states: there is no login")
	return found
}

// upsertsOwnKey reports whether the columns of the table's key are filled from
// the parts of the business key and nothing else.
func (c *Config) upsertsOwnKey() bool {
	sources := make([]string, 0, len(c.Key))
	for _, column := range c.Sink.Table.Conflict {
		sources = append(sources, c.Sink.Table.Columns[column])
	}
	key := slices.Clone(c.Key)
	slices.Sort(sources)
	slices.Sort(key)
	return len(key) > 0 && slices.Equal(sources, []string(key))
}

func allLocal(addresses []string) bool {
	return !slices.ContainsFunc(addresses, func(address string) bool {
		host, _, _ := net.SplitHostPort(address)
		return !isLoopback(host)
	})
}

// String is the warning as one line.
func (w Warning) String() string { return w.Where + ": " + w.Path + ": " + w.Message }
