package config

import (
	"cmp"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// checkRelations applies the rules that need more than one setting.
func checkRelations(c *Config) []violation {
	var vs []violation
	add := func(broken bool, path, message string) {
		if broken {
			vs = append(vs, violation{path: path, message: message})
		}
	}
	checkKafka(&c.Kafka, add)
	checkSASL(&c.Kafka, add)
	checkPostgres(&c.Postgres, add)
	checkTable(c, add)
	checkKey(c.Key, add)
	checkRedis(&c.Redis, add)
	add(c.Batch.MaxBytes > c.InflightBytes, cmp.Or(unless(c.Batch.MaxBytes, Default().Batch.MaxBytes, "batch.max_bytes"), "inflight_bytes"),
		"batch.max_bytes ("+c.Batch.MaxBytes.String()+") is more than inflight_bytes ("+c.InflightBytes.String()+")")
	add(time.Duration(c.Batch.Linger) >= time.Minute, "batch.linger", "a minute or more: records would wait longer than anybody expects")
	add(c.Scope == "topic" && len(c.Key) == 0, "scope", "topic is for a business key, and key is coordinates")
	add(c.OnTruncated == "rewind" && len(c.Key) > 0 && c.KeyMissing == Coordinates, "on_truncated",
		"rewind does not go with key_missing: coordinates: a record without its key would be taken for the one that was at its offset before the truncation")
	host, _, _ := net.SplitHostPort(c.Admin.Listen)
	add(!c.Admin.AllowRemote && !isLoopback(host), "admin.listen",
		"other machines could reach this address: listen on 127.0.0.1, or set admin.allow_remote: true")
	return vs
}

type adder func(broken bool, path, message string)

func checkKafka(k *Kafka, add adder) {
	add(k.HeartbeatInterval > k.SessionTimeout/3,
		cmp.Or(unless(k.HeartbeatInterval, Default().Kafka.HeartbeatInterval, "kafka.heartbeat_interval"), "kafka.session_timeout"),
		"heartbeat_interval ("+k.HeartbeatInterval.String()+") is more than a third of session_timeout ("+k.SessionTimeout.String()+")")
	add(k.InstanceID != "" && k.Protocol == "consumer", "kafka.instance_id",
		"does not go with protocol: consumer: the client forgets the id when it leaves, so each restart would wait until the broker's session timeout is over; use protocol: cooperative, or no id")
	twice(k.Topics, "kafka.topics", add)
	checkTLS(k.TLS, "kafka.tls", add)
}

func checkTLS(t TLS, at string, add adder) {
	for _, set := range []struct{ name, value string }{{"ca", t.CA}, {"cert", t.Cert}, {"key", t.Key}, {"server_name", t.ServerName}} {
		add(!t.Enabled && set.value != "", at+"."+set.name, "has no effect: "+at+".enabled is not true")
	}
	add(t.Cert != "" && t.Key == "", at+".cert", "needs "+at+".key beside it")
	add(t.Key != "" && t.Cert == "", at+".key", "needs "+at+".cert beside it")
}

func checkRedis(r *Redis, add adder) {
	const at = "redis."
	if len(r.Addresses) == 0 {
		for _, set := range []struct {
			name  string
			given bool
		}{
			{"sentinel", r.Sentinel != ""}, {"cluster", r.Cluster}, {"database", r.Database != 0}, {"username", r.Username != ""},
			{"password", !r.Password.IsZero()}, {"sentinel_username", r.SentinelUsername != ""},
			{"sentinel_password", !r.SentinelPassword.IsZero()}, {"tls", r.TLS != TLS{}}, {"prefix", r.Prefix != Default().Redis.Prefix},
			{"timeout", r.Timeout != Default().Redis.Timeout},
		} {
			add(set.given, at+set.name, "has no effect: redis.addresses is not set")
		}
		return
	}
	twice(r.Addresses, at+"addresses", add)
	add(r.Sentinel != "" && r.Cluster, at+"cluster", "stands beside redis.sentinel: it is one or the other")
	add(len(r.Addresses) > 1 && r.Sentinel == "" && !r.Cluster, at+"addresses",
		"several addresses are Sentinels or a Cluster: set redis.sentinel, or redis.cluster: true")
	add(r.Cluster && r.Database != 0, at+"database", "a Cluster has only database 0")
	add(r.Username != "" && r.Password.IsZero(), at+"username", "needs redis.password beside it")
	add(r.Sentinel == "" && r.SentinelUsername != "", at+"sentinel_username", "has no effect: redis.sentinel is not set")
	add(r.Sentinel == "" && !r.SentinelPassword.IsZero(), at+"sentinel_password", "has no effect: redis.sentinel is not set")
	checkTLS(r.TLS, "redis.tls", add)
}

func checkSASL(k *Kafka, add adder) {
	s := k.SASL
	const at = "kafka.sasl."
	given := map[string]bool{
		"username": s.Username != "", "password": !s.Password.IsZero(), "token_file": s.TokenFile != "", "token_url": s.TokenURL != "",
		"client_id": s.ClientID != "", "client_secret": !s.ClientSecret.IsZero(), "scopes": len(s.Scopes) > 0,
	}
	wants, refuses := []string{"username", "password"}, []string{"token_file", "token_url", "client_id", "client_secret", "scopes"}
	switch s.Mechanism {
	case "":
		wants, refuses = nil, append(refuses, wants...)
	case "OAUTHBEARER":
		wants, refuses = []string{"token_url", "client_id", "client_secret"}, []string{"username", "password"}
		if given["token_file"] {
			wants, refuses = nil, append(refuses, "token_url", "client_id", "client_secret", "scopes")
		}
	}
	for _, name := range wants {
		add(!given[name], at+name, "is required with "+s.Mechanism)
	}
	for _, name := range refuses {
		switch {
		case s.Mechanism == "":
			add(given[name], at+name, "has no effect: kafka.sasl.mechanism is not set")
		case given["token_file"] && s.Mechanism == "OAUTHBEARER" && !slices.Contains([]string{"username", "password"}, name):
			add(given[name], at+name, "stands beside token_file: the token comes from one or the other")
		default:
			add(given[name], at+name, "has no effect with "+s.Mechanism)
		}
	}
	readable := s.Mechanism == "PLAIN" || s.Mechanism == "OAUTHBEARER"
	add(readable && !k.TLS.Enabled && !s.AllowPlaintext, at+"mechanism",
		s.Mechanism+" without TLS sends the secret readable: set kafka.tls.enabled: true, or kafka.sasl.allow_plaintext: true")
	if u, err := url.Parse(s.TokenURL); err == nil {
		add(u.Scheme == "http" && !isLoopback(u.Hostname()) && !s.AllowPlaintext, at+"token_url",
			"http sends the client secret readable: use https, or set kafka.sasl.allow_plaintext: true")
		add(u.User != nil, at+"token_url", "takes no user and password: use client_id and client_secret")
	}
}

func checkPostgres(p *Postgres, add adder) {
	parts := []struct {
		name  string
		given bool
	}{
		{"host", p.Host != ""}, {"port", p.Port != 0}, {"database", p.Database != ""}, {"user", p.User != ""},
		{"password", !p.Password.IsZero()}, {"sslmode", p.SSLMode != ""}, {"sslrootcert", p.SSLRootCert != ""},
		{"sslcert", p.SSLCert != ""}, {"sslkey", p.SSLKey != ""},
	}
	anyPart := false
	for _, part := range parts {
		anyPart = anyPart || part.given
		add(part.given && !p.DSN.IsZero(), "postgres."+part.name, "stands beside postgres.dsn: use one or the other")
	}
	add(p.Schema == "pg_catalog" || p.Schema == "information_schema" || strings.HasPrefix(p.Schema, "pg_"), "postgres.schema",
		"belongs to Postgres itself")
	if p.DSN.IsZero() && !anyPart {
		add(true, "postgres", "wants a dsn, or host, database and user")
		return
	}
	at := "postgres.dsn"
	if p.DSN.IsZero() {
		at = "postgres"
		for _, part := range parts[:4] {
			add(!part.given && part.name != "port", "postgres."+part.name, "is required, or a dsn")
		}
	}
	add(p.SSLCert != "" && p.SSLKey == "", "postgres.sslcert", "needs postgres.sslkey beside it")
	add(p.SSLKey != "" && p.SSLCert == "", "postgres.sslkey", "needs postgres.sslcert beside it")
	if _, err := p.ConnString(); err != nil {
		add(true, at, err.Error())
	}
}

func checkTable(c *Config, add adder) {
	t := c.Sink.Table
	const at = "sink.table."
	add(t.Schema == c.Postgres.Schema, cmp.Or(unless(t.Schema, Default().Sink.Table.Schema, at+"schema"), "postgres.schema"),
		"the program's own tables want a schema of their own, the table is in "+t.Schema)
	twice(t.Conflict, at+"conflict", add)
	add(t.Mode == "upsert" && len(t.Conflict) == 0, at+"conflict", "is required with mode: upsert: the columns of the table's key")
	add(t.Mode == "insert" && len(t.Conflict) > 0, at+"conflict", "has no effect with mode: insert")
	for i, column := range t.Conflict {
		_, mapped := t.Columns[column]
		add(!mapped && t.Mode == "upsert" && len(t.Columns) > 0, at+"conflict["+strconv.Itoa(i)+"]", "is not among the columns")
	}
}

func checkKey(key Sources, add adder) {
	twice(key, "key", add)
	for i, source := range key {
		at := "key" + index(i, len(key))
		add(source == Coordinates, at, "coordinates stands alone: it means that there is no business key")
		if source != Coordinates {
			add(sourceFault(source) != "", at, sourceFault(source))
		}
	}
}

// unless gives the name of a setting that is not at its default: of two that
// do not fit together, the one that was set is to blame.
func unless[T comparable](value, standard T, name string) string {
	if value == standard {
		return ""
	}
	return name
}

// twice finds repeated entries of a list.
func twice(list []string, path string, add adder) {
	seen := map[string]bool{}
	for i, entry := range list {
		add(seen[entry], path+"["+strconv.Itoa(i)+"]", "is in the list twice")
		seen[entry] = true
	}
}

// index names an entry of a list, but not of a single value.
func index(i, n int) string {
	if n == 1 {
		return ""
	}
	return "[" + strconv.Itoa(i) + "]"
}
