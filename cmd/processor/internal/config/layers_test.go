package config

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const minimal = `
pipeline: orders
kafka: {brokers: ["127.0.0.1:9092"], topics: [orders]}
postgres: {host: 127.0.0.1, database: app, user: effectonce}
key: order_id
sink: {table: {name: orders, columns: {order_id: order_id}}}
`

func mustLoad(t *testing.T, text string, o Options) *Loaded {
	t.Helper()
	l, err := testLoad(t, text, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Each layer wins over the ones before it, and is named as the origin.
func TestPrecedence(t *testing.T) {
	const inFile = minimal + "log: {level: error}\n"
	env := []string{"EFFECTONCE_LOG__LEVEL=warn"}
	set := []string{"log.level=trace", "log.level=debug"}
	flags := []Override{{Path: "log.level", Value: "info", Flag: "--log-level"}}
	for _, c := range []struct {
		name, text string
		options    Options
		want       string
		kind       Kind
		where      string
	}{
		{"default", minimal, Options{}, "info", FromDefault, "default"},
		{"file", inFile, Options{}, "error", FromFile, "orders.yaml:7:14"},
		{"environment", inFile, Options{Environ: env}, "warn", FromEnv, "EFFECTONCE_LOG__LEVEL"},
		{"set, the last one", inFile, Options{Environ: env, Set: set}, "debug", FromSet, "--set log.level"},
		{"flag", inFile, Options{Environ: env, Set: set, Flags: flags}, "info", FromFlag, "--log-level"},
		{"environment without the file", minimal, Options{Environ: env}, "warn", FromEnv, "EFFECTONCE_LOG__LEVEL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := mustLoad(t, c.text, c.options)
			origin := l.Origin("log.level")
			got := []string{l.Config.Log.Level, string(origin.Kind), origin.String()}
			if diff := cmp.Diff([]string{c.want, string(c.kind), c.where}, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestEnvironmentNamesSettings(t *testing.T) {
	l := mustLoad(t, minimal, Options{Environ: []string{
		"EFFECTONCE_KAFKA__BROKERS=a:1, b:2",
		"EFFECTONCE_SINK__TABLE__COLUMNS__AMOUNT=amount",
		"EFFECTONCE_KEY=order_id,line",
		"EFFECTONCE_COMMITTERS=3",
		"EFFECTONCE_BATCH__MAX_BYTES=1MiB",
		"EFFECTONCE_DSN=not a setting",
		"EFFECTONCE_TEST_KAFKA=neither",
		"EFFECTONCE_=nor this",
		"KAFKA__GROUP=nor this",
	}})
	c := l.Config
	got := []any{c.Kafka.Brokers, c.Sink.Table.Columns, []string(c.Key), c.Committers, c.Batch.MaxBytes, c.Kafka.Group}
	want := []any{[]string{"a:1", "b:2"}, map[string]string{"order_id": "order_id", "amount": "amount"}, []string{"order_id", "line"}, 3, Size(1 << 20), "orders"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A variable or --set that names no setting is a fault, not silence.
func TestMisspeltOverridesAreFaults(t *testing.T) {
	_, err := testLoad(t, minimal, Options{
		Environ: []string{"EFFECTONCE_KAFKA__BROKRES=x:1", "EFFECTONCE_KAFKA__SASL__PASWORD=" + canary},
		Set:     []string{"kafka.grup=x", "nonsense", "=" + canary, "committers=many", "sink.table.columns=a"},
	})
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("got %v, want faults", err)
	}
	want := []string{
		"EFFECTONCE_KAFKA__BROKRES: kafka.brokres: unknown setting, did you mean brokers?",
		"EFFECTONCE_KAFKA__SASL__PASWORD: kafka.sasl.pasword: unknown setting, did you mean password?",
		"--set: wants setting=value, such as --set kafka.group=orders",
		"--set: wants setting=value, such as --set kafka.group=orders",
		"--set committers: committers: wants a whole number",
		"--set kafka.grup: kafka.grup: unknown setting, did you mean group?",
		"--set sink.table.columns: sink.table.columns: wants a group of name: value, found a single value",
	}
	var got []string
	for _, f := range faults {
		got = append(got, f.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDefaultsAreFilled(t *testing.T) {
	got := mustLoad(t, minimal, Options{}).Config
	want := Default()
	want.Pipeline = "orders"
	want.Kafka.Brokers, want.Kafka.Topics, want.Kafka.Group = []string{"127.0.0.1:9092"}, []string{"orders"}, "orders"
	want.Postgres.Host, want.Postgres.Database, want.Postgres.User = "127.0.0.1", "app", "effectonce"
	want.Key = Sources{"order_id"}
	want.Sink.Table.Name, want.Sink.Table.Columns = "orders", map[string]string{"order_id": "order_id"}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(Secret{}, DSN{})); diff != "" {
		t.Error(diff)
	}
}

// The defaults themselves are part of the contract.
func TestDefaults(t *testing.T) {
	l := mustLoad(t, minimal, Options{})
	text, err := l.YAML()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for block := range strings.SplitSeq(string(text), "# default\n") {
		line, _, _ := strings.Cut(block, "\n")
		got = append(got, strings.TrimSpace(line))
	}
	want := []string{
		"session_timeout: 45s", "rebalance_timeout: 1m", "heartbeat_interval: 3s", "protocol: cooperative", "max_decompressed_batch: 64MiB",
		"isolation: read_committed", "blocked_after: 1m", "schema: effectonce", "key_missing: dead_letter", "scope: partition", "partitioner: murmur2",
		"null_kafka_key: refuse", "schema: public", "mode: insert", "max_records: 10000", "max_bytes: 8MiB", "inflight_bytes: 128MiB",
		"grace: 2s", "timeout: 2m", "stalled_after: 30s", "shutdown_grace: 20s", "stop_after: 20", "on_external_reset: warn", "on_partition_growth: stop", "listen: 127.0.0.1:9464", "level: info", "format: auto",
	}
	missing := slices.DeleteFunc(want, func(s string) bool { return slices.Contains(got, s) })
	if len(missing) > 0 {
		t.Errorf("no default %v in\n%s", missing, text)
	}
}

func TestInterpolation(t *testing.T) {
	vars := map[string]string{"A": "a", "EMPTY": "", "YAML": "x: [1, 2] # ${A}", "DOLLAR": "$$", "N": "7", "B": "true"}
	from := lookup{file: secretFile, env: func(name string) (string, bool) { v, ok := vars[name]; return v, ok }}
	for _, c := range []struct{ in, want, fault string }{
		{"plain", "plain", ""},
		{"", "", ""},
		{"${A}", "a", ""},
		{"x-${A}-${A}y", "x-a-ay", ""},
		{"${YAML}", "x: [1, 2] # ${A}", ""},
		{"${DOLLAR}", "$$", ""},
		{"$$", "$", ""},
		{"$${A}", "${A}", ""},
		{"$$${A}", "$a", ""},
		{"pa$word$", "pa$word$", ""},
		{"${EMPTY}", "", ""},
		{"${EMPTY:-d}", "d", ""},
		{"${NOT:-}", "", ""},
		{"${NOT:-a:b}", "a:b", ""},
		{"${A:?why}", "a", ""},
		{"${file:secret}", canary, ""},
		{"u:${file:secret}@", "u:" + canary + "@", ""},
		{"${NOT}", "", "the environment variable NOT is not set"},
		{"${NOT:?ask}", "", "NOT is not set: ask"},
		{"${EMPTY:?ask}", "", "EMPTY is not set: ask"},
		{"${", "", "${ without its }"},
		{"${}", "", "wants ${VAR}"},
		{"${A:+x}", "", "wants ${VAR}"},
		{"${A:}", "", "wants ${VAR}"},
		{"${A-x}", "", "wants ${VAR}"},
		{"${A:-${A}}", "", "inside another"},
		{"${file:}", "", "file does not exist"},
		{"${file:/x}", "", "${file:/x}: file does not exist"},
	} {
		got, _, err := interpolate(c.in, from)
		switch {
		case c.fault == "" && (err != nil || got != c.want):
			t.Errorf("%q: got %q, %v, want %q", c.in, got, err, c.want)
		case c.fault != "" && (err == nil || !strings.Contains(err.Error(), c.fault)):
			t.Errorf("%q: got %q, %v, want a fault with %q", c.in, got, err, c.fault)
		}
	}
}

// What a variable holds takes the type of its field and is never read as YAML.
func TestInterpolatedValuesTakeTheTypeOfTheirField(t *testing.T) {
	text := strings.Replace(minimal, "name: orders", "name: '${NAME}'", 1) +
		"committers: \"${N}\"\nadmin:\n  allow_remote: ${B}\nbatch: {max_bytes: '${S}'}\n"
	l := mustLoad(t, text, Options{Environ: []string{"NAME=[a, b]: {c}", "N=7", "B=true", "S=2MiB"}})
	got := []any{l.Config.Sink.Table.Name, l.Config.Committers, l.Config.Admin.AllowRemote, l.Config.Batch.MaxBytes}
	if diff := cmp.Diff([]any{"[a, b]: {c}", 7, true, Size(2 << 20)}, got); diff != "" {
		t.Error(diff)
	}
	_, err := testLoad(t, minimal+"committers: \"7\"\n", Options{})
	if err == nil {
		t.Error("a text was taken for a number")
	}
}

// Digits that look like a number stay what was written.
func TestTextKeepsItsDigits(t *testing.T) {
	l := mustLoad(t, strings.Replace(minimal, "user: effectonce", "user: 0123, password: 1.50e3", 1), Options{})
	if l.Config.Postgres.User != "0123" || l.Config.Postgres.Password.Reveal() != "1.50e3" {
		t.Errorf("got %q, %q", l.Config.Postgres.User, l.Config.Postgres.Password.Reveal())
	}
}

func TestStart(t *testing.T) {
	for in, want := range map[string]Start{
		"earliest":                  {Mode: StartEarliest},
		"latest":                    {Mode: StartLatest},
		"committed":                 {Mode: StartCommitted},
		"2026-01-31T00:00:00Z":      {Mode: StartTime, Time: time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)},
		"2026-01-31T01:00:00+01:00": {Mode: StartTime, Time: time.Date(2026, 1, 31, 0, 0, 0, 0, time.UTC)},
	} {
		l := mustLoad(t, strings.Replace(minimal, "topics: [orders]", "topics: [orders], start: "+in, 1), Options{})
		got := l.Config.Kafka.Start
		if got.Mode != want.Mode || !got.Time.Equal(want.Time) || got.IsZero() {
			t.Errorf("%s: got %v", in, got)
		}
	}
	if l := mustLoad(t, minimal, Options{}); !l.Config.Kafka.Start.IsZero() {
		t.Error("start is set although nobody set it")
	}
}

func TestKey(t *testing.T) {
	for in, want := range map[string][]string{
		"order_id": {"order_id"}, "[a, header:b]": {"a", "header:b"}, "coordinates": nil, "": nil, "kafka:key": {"kafka:key"}, "/a.b/c": {"/a.b/c"},
	} {
		l := mustLoad(t, strings.Replace(minimal, "key: order_id", "key: "+in, 1), Options{})
		if diff := cmp.Diff(want, []string(l.Config.Key)); diff != "" {
			t.Errorf("%q: %s", in, diff)
		}
	}
}

func TestScalars(t *testing.T) {
	var d Duration
	for in, want := range map[string]string{"45s": "45s", "1m0s": "1m", "2h": "2h", "90m": "1h30m", "250ms": "250ms"} {
		if err := d.UnmarshalText([]byte(in)); err != nil || d.String() != want {
			t.Errorf("%s: got %s, %v", in, d, err)
		}
	}
	var s Size
	for in, want := range map[string]int64{"64MiB": 64 << 20, "1 KiB": 1 << 10, "2GiB": 2 << 30, "10MB": 10e6, "5kB": 5e3, "7B": 7, "1024": 1024, "0": 0} {
		if err := s.UnmarshalText([]byte(in)); err != nil || s.Bytes() != want {
			t.Errorf("%s: got %d, %v", in, s, err)
		}
		var again Size
		if err := again.UnmarshalText([]byte(s.String())); err != nil || again != s {
			t.Errorf("%s is printed as %s, which is read as %d, %v", in, s, again, err)
		}
	}
	for _, in := range []string{"", "MiB", "-1", "1.5MiB", "9223372036854775807KiB", "1 mib", "1Mib", "x"} {
		if err := s.UnmarshalText([]byte(in)); err == nil {
			t.Errorf("%q was taken for %d bytes", in, s)
		}
	}
}

// A file that is missing or not a file is a fault of the configuration.
func TestUnreadableFile(t *testing.T) {
	for _, file := range []string{t.TempDir(), t.TempDir() + "/none.yaml"} {
		_, err := Load(Options{File: file, Environ: os.Environ()})
		var faults Faults
		if !errors.As(err, &faults) || !strings.HasPrefix(err.Error(), file+": ") {
			t.Errorf("got %v, want a fault that names %s", err, file)
		}
	}
}

func TestWarnings(t *testing.T) {
	for _, c := range []struct{ replace, with, want string }{
		{"key: order_id", "key: coordinates", "key"},
		{"key: order_id", "key: order_id\nkey_missing: coordinates", "key_missing"},
		{"key: order_id", "key: order_id\npartitioner: none", "partitioner"},
		{"key: order_id", "key: order_id\nnull_kafka_key: allow", "null_kafka_key"},
		{"name: orders,", "name: orders, mode: upsert, conflict: [order_id],", "sink.table.conflict"},
		{"topics:", "isolation: read_uncommitted, topics:", "kafka.isolation"},
		{"topics:", "protocol: consumer, session_timeout: 30s, topics:", "kafka.session_timeout"},
		{"topics:", "sasl: {mechanism: PLAIN, username: u, password: p, allow_plaintext: true}, topics:", "kafka.sasl.allow_plaintext"},
		{"host: 127.0.0.1", "host: db.example, sslmode: disable", "postgres.sslmode"},
		{"key: order_id", "key: order_id\nadmin: {listen: '0.0.0.0:1', allow_remote: true}", "admin.listen"},
	} {
		l := mustLoad(t, strings.Replace(minimal, c.replace, c.with, 1), Options{})
		got := map[string]bool{}
		for _, w := range l.Warnings() {
			got[w.Path] = true
		}
		if !maps.Equal(got, map[string]bool{c.want: true}) {
			t.Errorf("%s: got warnings about %v, want %s", c.with, got, c.want)
		}
	}
	if w := mustLoad(t, minimal, Options{}).Warnings(); len(w) > 0 {
		t.Errorf("warnings about nothing: %v", w)
	}
}
