package config

import "time"

// Config is one pipeline: one file, one process. Load fills every default, so
// a Config that came from Load can be used as it stands.
type Config struct {
	Pipeline        string      `yaml:"pipeline" json:"pipeline" validate:"required,name" jsonschema:"name of the pipeline; everything kept in Postgres hangs on it, so it is chosen once"`
	Kafka           Kafka       `yaml:"kafka" json:"kafka" jsonschema:"where the records come from"`
	Postgres        Postgres    `yaml:"postgres" json:"postgres" jsonschema:"where the effects, the positions and the deduplication log live: a dsn or its parts, never both"`
	Key             Sources     `yaml:"key,omitempty" json:"key,omitempty" jsonschema:"the business key: a source, a list of sources for a composite key, or 'coordinates' for none"`
	KeyMissing      string      `yaml:"key_missing,omitempty" json:"key_missing,omitempty" validate:"oneof=dead_letter coordinates" jsonschema:"what happens to a record without the key: dead_letter (default), or coordinates to recognise it by topic, partition and offset"`
	Scope           string      `yaml:"scope,omitempty" json:"scope,omitempty" validate:"oneof=partition topic" jsonschema:"where a business key is unique: partition (default; exact while a key always comes on one partition), or topic (exact for any producer; one log a topic, which all members append to)"`
	Partitioner     string      `yaml:"partitioner,omitempty" json:"partitioner,omitempty" validate:"oneof=murmur2 crc32 fnv1a none" jsonschema:"the producers' partitioner, checked on every record in scope partition: murmur2 (Java clients, default), crc32 (librdkafka), fnv1a (Sarama), or none for no check"`
	NullKafkaKey    string      `yaml:"null_kafka_key,omitempty" json:"null_kafka_key,omitempty" validate:"oneof=refuse allow" jsonschema:"whether a record without a Kafka key is taken in scope partition with a business key: refuse (default) or allow"`
	Sink            Sink        `yaml:"sink" json:"sink" jsonschema:"what a record does in Postgres"`
	Batch           Batch       `yaml:"batch,omitempty" json:"batch,omitempty" jsonschema:"how large one transaction may become"`
	InflightBytes   Size        `yaml:"inflight_bytes,omitempty" json:"inflight_bytes,omitempty" validate:"gt=0" jsonschema:"bytes polled and not yet committed, for the process (default 128MiB)"`
	Dedup           Dedup       `yaml:"dedup,omitempty" json:"dedup,omitempty" jsonschema:"how much is remembered, and where"`
	Audit           Audit       `yaml:"audit,omitempty" json:"audit,omitempty" jsonschema:"the audit trail in Postgres"`
	Redis           Redis       `yaml:"redis,omitempty" json:"redis,omitempty" jsonschema:"a cache of filters, for a quick start after a takeover; nothing is decided or lost there"`
	Committers      int         `yaml:"committers,omitempty" json:"committers,omitempty" validate:"min=0,max=256" jsonschema:"committing goroutines, one connection each; 0 (default) is two a core, at most 8"`
	Takeover        Takeover    `yaml:"takeover,omitempty" json:"takeover,omitempty" jsonschema:"how a partition is taken from a member that no longer answers"`
	DeadLetters     DeadLetters `yaml:"dead_letters,omitempty" json:"dead_letters,omitempty" jsonschema:"when refused records stop the pipeline"`
	OnExternalReset string      `yaml:"on_external_reset,omitempty" json:"on_external_reset,omitempty" validate:"oneof=warn honour fail" jsonschema:"what to do when somebody else moved the group's offsets in Kafka: warn (default) and go on from Postgres, honour to move the position there, or fail to stop the partition"`
	OnGrowth        string      `yaml:"on_partition_growth,omitempty" json:"on_partition_growth,omitempty" validate:"oneof=stop widen" jsonschema:"what to do when a topic in scope partition gets more partitions: stop (default) the partitions where it shows, or widen the topic to scope topic with all of its keys"`
	OnOutOfRange    string      `yaml:"on_out_of_range,omitempty" json:"on_out_of_range,omitempty" validate:"oneof=stop accept_loss" jsonschema:"what to do when the position lies outside the log, as after a downtime beyond the topic's retention: stop (default) the partition, or accept_loss and go on at the nearest offset that Kafka has"`
	OnTruncated     string      `yaml:"on_truncated,omitempty" json:"on_truncated,omitempty" validate:"oneof=stop rewind" jsonschema:"what to do when the log was cut below the position, as by an unclean leader election: stop (default) the partition, or rewind and go on where the logs part"`
	StalledAfter    Duration    `yaml:"stalled_after,omitempty" json:"stalled_after,omitempty" validate:"gt=0" jsonschema:"how long a partition may stand still without a reason that is known before it is reported and the Kafka client is made anew (default 30s)"`
	ShutdownGrace   Duration    `yaml:"shutdown_grace,omitempty" json:"shutdown_grace,omitempty" validate:"gt=0" jsonschema:"how long a stop may take from the signal on; batches in flight are cut off then, and are the next owner's (default 20s)"`
	Admin           Admin       `yaml:"admin,omitempty" json:"admin,omitempty" jsonschema:"the address of /livez, /readyz and /metrics"`
	Log             Log         `yaml:"log,omitempty" json:"log,omitempty" jsonschema:"the log on standard error"`
}

// Kafka is the source of the records.
type Kafka struct {
	Brokers              []string `yaml:"brokers" json:"brokers" validate:"required,min=1,dive,hostport" jsonschema:"seed brokers, host:port"`
	Topics               []string `yaml:"topics" json:"topics" validate:"required,min=1,dive,topic" jsonschema:"topics to consume, by name; patterns are refused"`
	Group                string   `yaml:"group,omitempty" json:"group,omitempty" validate:"max=255" jsonschema:"consumer group (default: the pipeline's name)"`
	Start                Start    `yaml:"start,omitempty" json:"start,omitempty" jsonschema:"where the first start begins: earliest, latest, committed (the group's own offsets), or an RFC 3339 time; unset is earliest, unless the group already has offsets that are not ours, which is refused"`
	TLS                  TLS      `yaml:"tls,omitempty" json:"tls,omitempty" jsonschema:"encryption towards the brokers"`
	SASL                 SASL     `yaml:"sasl,omitempty" json:"sasl,omitempty" jsonschema:"authentication towards the brokers"`
	SessionTimeout       Duration `yaml:"session_timeout,omitempty" json:"session_timeout,omitempty" validate:"gt=0" jsonschema:"how long the broker waits for a silent member (default 45s)"`
	RebalanceTimeout     Duration `yaml:"rebalance_timeout,omitempty" json:"rebalance_timeout,omitempty" validate:"gt=0" jsonschema:"how long a rebalance waits for a member to join (default 60s)"`
	HeartbeatInterval    Duration `yaml:"heartbeat_interval,omitempty" json:"heartbeat_interval,omitempty" validate:"gt=0" jsonschema:"time between heartbeats, at most a third of session_timeout (default 3s)"`
	Protocol             string   `yaml:"protocol,omitempty" json:"protocol,omitempty" validate:"oneof=cooperative range consumer" jsonschema:"group protocol: cooperative (default), range, or consumer (KIP-848)"`
	InstanceID           string   `yaml:"instance_id,omitempty" json:"instance_id,omitempty" validate:"omitempty,instance" jsonschema:"static membership: this process's own name in the group, kept over restarts, such as ${HOSTNAME} in a StatefulSet; a stop leaves its partitions to it until session_timeout is over (default: none)"`
	MaxDecompressedBatch Size     `yaml:"max_decompressed_batch,omitempty" json:"max_decompressed_batch,omitempty" validate:"gt=0" jsonschema:"largest Kafka batch after decompression; a larger one stops its partition (default 64MiB)"`
	Isolation            string   `yaml:"isolation,omitempty" json:"isolation,omitempty" validate:"oneof=read_committed read_uncommitted" jsonschema:"read_committed (default) skips records of aborted Kafka transactions; read_uncommitted does not"`
	BlockedAfter         Duration `yaml:"blocked_after,omitempty" json:"blocked_after,omitempty" validate:"gt=0" jsonschema:"how long an open Kafka transaction may hold back a partition before it is called blocked (default 1m); for producers with long transactions, longer than these"`
}

// TLS secures the connections to Kafka, or to Redis. CA, Cert and Key are paths of
// PEM files.
type TLS struct {
	Enabled    bool   `yaml:"enabled,omitempty" json:"enabled,omitempty" jsonschema:"speak TLS"`
	CA         string `yaml:"ca,omitempty" json:"ca,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the authorities to trust (default: the system's)"`
	Cert       string `yaml:"cert,omitempty" json:"cert,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the client certificate"`
	Key        string `yaml:"key,omitempty" json:"key,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the client certificate's key"`
	ServerName string `yaml:"server_name,omitempty" json:"server_name,omitempty" jsonschema:"name the servers' certificates must carry (default: the host dialled)"`
}

// SASL authenticates towards Kafka; an empty Mechanism means it is not used.
type SASL struct {
	Mechanism      string   `yaml:"mechanism,omitempty" json:"mechanism,omitempty" validate:"omitempty,oneof=PLAIN SCRAM-SHA-256 SCRAM-SHA-512 OAUTHBEARER" jsonschema:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER"`
	Username       string   `yaml:"username,omitempty" json:"username,omitempty" jsonschema:"user for PLAIN and SCRAM"`
	Password       Secret   `yaml:"password,omitempty" json:"password,omitempty" jsonschema:"password for PLAIN and SCRAM"`
	TokenFile      string   `yaml:"token_file,omitempty" json:"token_file,omitempty" validate:"omitempty,path" jsonschema:"OAUTHBEARER: file with the token, read again at every login"`
	TokenURL       string   `yaml:"token_url,omitempty" json:"token_url,omitempty" validate:"omitempty,http_url" jsonschema:"OAUTHBEARER: token endpoint for client credentials"`
	ClientID       string   `yaml:"client_id,omitempty" json:"client_id,omitempty" jsonschema:"OAUTHBEARER: client id for token_url"`
	ClientSecret   Secret   `yaml:"client_secret,omitempty" json:"client_secret,omitempty" jsonschema:"OAUTHBEARER: client secret for token_url"`
	Scopes         []string `yaml:"scopes,omitempty" json:"scopes,omitempty" jsonschema:"OAUTHBEARER: scopes asked for"`
	AllowPlaintext bool     `yaml:"allow_plaintext,omitempty" json:"allow_plaintext,omitempty" jsonschema:"permit PLAIN without TLS: the password crosses the network readable"`
}

// Postgres names the database, by a DSN or by parts, never by both. Use Conn
// for the connection string that holds either way.
type Postgres struct {
	DSN         DSN    `yaml:"dsn,omitempty" json:"dsn,omitempty" jsonschema:"connection string, as a URL or as keyword=value pairs"`
	Host        string `yaml:"host,omitempty" json:"host,omitempty" jsonschema:"host name, address, or directory of a unix socket"`
	Port        int    `yaml:"port,omitempty" json:"port,omitempty" validate:"min=0,max=65535" jsonschema:"port (default 5432)"`
	Database    string `yaml:"database,omitempty" json:"database,omitempty" validate:"identifier" jsonschema:"database name"`
	User        string `yaml:"user,omitempty" json:"user,omitempty" validate:"identifier" jsonschema:"role to log in as"`
	Password    Secret `yaml:"password,omitempty" json:"password,omitempty" jsonschema:"password of the role"`
	SSLMode     string `yaml:"sslmode,omitempty" json:"sslmode,omitempty" validate:"omitempty,oneof=disable allow prefer require verify-ca verify-full" jsonschema:"TLS mode (default: verify-full, but prefer for loopback addresses and unix sockets)"`
	SSLRootCert string `yaml:"sslrootcert,omitempty" json:"sslrootcert,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the authorities to trust (default: the system's)"`
	SSLCert     string `yaml:"sslcert,omitempty" json:"sslcert,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the client certificate"`
	SSLKey      string `yaml:"sslkey,omitempty" json:"sslkey,omitempty" validate:"omitempty,path" jsonschema:"PEM file with the client certificate's key"`
	Schema      string `yaml:"schema,omitempty" json:"schema,omitempty" validate:"required,identifier" jsonschema:"schema of the program's own tables (default effectonce)"`
}

// Sink is what a record does in Postgres. There is one kind so far.
type Sink struct {
	Table Table `yaml:"table" json:"table" jsonschema:"write each record as a row of a table"`
}

// Table maps records to rows of one table.
type Table struct {
	Schema   string            `yaml:"schema,omitempty" json:"schema,omitempty" validate:"required,identifier" jsonschema:"schema of the table (default public)"`
	Name     string            `yaml:"name" json:"name" validate:"required,identifier" jsonschema:"name of the table"`
	Mode     string            `yaml:"mode,omitempty" json:"mode,omitempty" validate:"oneof=insert upsert" jsonschema:"insert (default), or upsert by the conflict columns"`
	Conflict []string          `yaml:"conflict,omitempty" json:"conflict,omitempty" validate:"dive,required,identifier" jsonschema:"upsert: the columns of the table's key"`
	Columns  map[string]string `yaml:"columns" json:"columns" validate:"required,min=1,dive,keys,required,identifier,endkeys,source" jsonschema:"column to source: a field path (order.id), a pointer (/a.b/c), header:NAME, or kafka:key, kafka:topic, kafka:partition, kafka:offset, kafka:timestamp, kafka:value"`
}

// Dedup says how business keys are remembered.
type Dedup struct {
	Memory         Size     `yaml:"memory,omitempty" json:"memory,omitempty" validate:"min=0" jsonschema:"bytes for business keys in memory, for the process; what does not fit is sealed into Postgres behind filters (default 256MiB; 0 is no bound: nothing is sealed)"`
	Retention      Duration `yaml:"retention,omitempty" json:"retention,omitempty" validate:"min=0" jsonschema:"how far the records' times may have come past a key before it is forgotten; a short one is a sliding window (default 0: for ever)"`
	ShortRetention bool     `yaml:"allow_short_retention,omitempty" json:"allow_short_retention,omitempty" jsonschema:"permit a retention below the topic's own: a replay may apply records again"`
}

// Audit says how long the audit trail is kept.
type Audit struct {
	Retention Duration `yaml:"retention,omitempty" json:"retention,omitempty" validate:"gt=0" jsonschema:"how long the audit rows of sealed runs are kept (default 168h)"`
}

// Redis is where filters are cached; without Addresses there is no cache.
type Redis struct {
	Addresses        []string `yaml:"addresses,omitempty" json:"addresses,omitempty" validate:"dive,hostport" jsonschema:"host:port of the server, of the Sentinels, or of some nodes of a Cluster"`
	Sentinel         string   `yaml:"sentinel,omitempty" json:"sentinel,omitempty" jsonschema:"name of the master that the Sentinels at addresses watch"`
	Cluster          bool     `yaml:"cluster,omitempty" json:"cluster,omitempty" jsonschema:"addresses are nodes of a Redis Cluster"`
	Database         int      `yaml:"database,omitempty" json:"database,omitempty" validate:"min=0" jsonschema:"number of the database (default 0)"`
	Username         string   `yaml:"username,omitempty" json:"username,omitempty" jsonschema:"ACL user (default: Redis's default user)"`
	Password         Secret   `yaml:"password,omitempty" json:"password,omitempty" jsonschema:"password of the user"`
	SentinelUsername string   `yaml:"sentinel_username,omitempty" json:"sentinel_username,omitempty" jsonschema:"ACL user at the Sentinels"`
	SentinelPassword Secret   `yaml:"sentinel_password,omitempty" json:"sentinel_password,omitempty" jsonschema:"password at the Sentinels"`
	TLS              TLS      `yaml:"tls,omitempty" json:"tls,omitempty" jsonschema:"encryption towards Redis"`
	Prefix           string   `yaml:"prefix,omitempty" json:"prefix,omitempty" validate:"required" jsonschema:"what each key begins with (default effectonce:)"`
	Timeout          Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" validate:"gt=0" jsonschema:"how long one part of an image (4MiB) may take (default 250ms)"`
}

// Batch bounds one transaction.
type Batch struct {
	MaxRecords int      `yaml:"max_records,omitempty" json:"max_records,omitempty" validate:"min=1,max=1000000" jsonschema:"records in one transaction (default 10000)"`
	MaxBytes   Size     `yaml:"max_bytes,omitempty" json:"max_bytes,omitempty" validate:"gt=0" jsonschema:"bytes of records in one transaction (default 8MiB)"`
	Linger     Duration `yaml:"linger,omitempty" json:"linger,omitempty" validate:"min=0" jsonschema:"how long a partition's batch below these waits for more records, for fewer and larger commits (default 0: commit at once)"`
	Timeout    Duration `yaml:"timeout,omitempty" json:"timeout,omitempty" validate:"gt=0" jsonschema:"most time of one transaction, from BEGIN to the answer of COMMIT; Kafka's time limits have no part in it (default 2m)"`
}

// Takeover says how a partition is taken from a member that no longer answers.
type Takeover struct {
	Grace Duration `yaml:"grace,omitempty" json:"grace,omitempty" validate:"gt=0" jsonschema:"how long a takeover waits for the old owner's transaction before it ends that connection (default 2s)"`
}

// DeadLetters says when refused records stop the pipeline.
type DeadLetters struct {
	StopAfter int `yaml:"stop_after,omitempty" json:"stop_after,omitempty" validate:"min=1" jsonschema:"effects failing in a row, with none applied between, before the partition stops (default 20)"`
}

// Admin is the address of /livez, /readyz and /metrics.
type Admin struct {
	Listen      string `yaml:"listen,omitempty" json:"listen,omitempty" validate:"hostport" jsonschema:"host:port to listen on (default 127.0.0.1:9464)"`
	AllowRemote bool   `yaml:"allow_remote,omitempty" json:"allow_remote,omitempty" jsonschema:"permit an address that other machines can reach"`
}

// Log is the log on standard error.
type Log struct {
	Level  string `yaml:"level,omitempty" json:"level,omitempty" validate:"oneof=trace debug info warn error" jsonschema:"trace, debug, info (default), warn or error"`
	Format string `yaml:"format,omitempty" json:"format,omitempty" validate:"oneof=auto json console" jsonschema:"json, console, or auto (default): console on a terminal, json otherwise"`
}

// Default returns the settings a file may leave out. What has no default
// (pipeline, brokers, topics, the table) is empty, and Load asks for it.
func Default() Config {
	return Config{
		Kafka: Kafka{
			SessionTimeout:       Duration(45 * time.Second),
			RebalanceTimeout:     Duration(60 * time.Second),
			HeartbeatInterval:    Duration(3 * time.Second),
			Protocol:             "cooperative",
			MaxDecompressedBatch: 64 << 20,
			Isolation:            "read_committed",
			BlockedAfter:         Duration(time.Minute),
		},
		Postgres:        Postgres{Schema: "effectonce"},
		KeyMissing:      "dead_letter",
		Scope:           "partition",
		Partitioner:     "murmur2",
		NullKafkaKey:    "refuse",
		Sink:            Sink{Table: Table{Schema: "public", Mode: "insert"}},
		Batch:           Batch{MaxRecords: 10_000, MaxBytes: 8 << 20, Timeout: Duration(2 * time.Minute)},
		Dedup:           Dedup{Memory: 256 << 20},
		InflightBytes:   128 << 20,
		Audit:           Audit{Retention: Duration(7 * 24 * time.Hour)},
		Redis:           Redis{Prefix: "effectonce:", Timeout: Duration(250 * time.Millisecond)},
		Takeover:        Takeover{Grace: Duration(2 * time.Second)},
		DeadLetters:     DeadLetters{StopAfter: 20},
		OnExternalReset: "warn",
		OnGrowth:        "stop",
		OnOutOfRange:    "stop",
		OnTruncated:     "stop",
		StalledAfter:    Duration(30 * time.Second),
		ShutdownGrace:   Duration(20 * time.Second),
		Admin:           Admin{Listen: "127.0.0.1:9464"},
		Log:             Log{Level: "info", Format: "auto"},
	}
}
