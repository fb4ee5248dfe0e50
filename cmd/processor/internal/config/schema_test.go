package config

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/jsonschema-go/jsonschema"
)

// The sample is what people begin with: it must be right.
func TestSampleIsValid(t *testing.T) {
	l, err := testLoad(t, string(Sample()), Options{Environ: []string{"EFFECTONCE_DSN=postgres://effectonce@127.0.0.1/app"}})
	if err != nil {
		t.Fatal(err)
	}
	if w := l.Warnings(); len(w) > 0 {
		t.Errorf("the sample is warned of: %v", w)
	}
	if _, err := testLoad(t, string(Sample()), Options{}); err == nil || !strings.Contains(err.Error(), "EFFECTONCE_DSN is not set") {
		t.Errorf("without its variable: %v", err)
	}
	if !strings.HasPrefix(string(Sample()), "# yaml-language-server: $schema=") {
		t.Error("the first line does not name the schema")
	}
}

// The lines a reader may uncomment are right too, and name every setting.
func TestUncommentedSampleIsValid(t *testing.T) {
	var uncommented strings.Builder
	body := false
	for line := range strings.Lines(string(Sample())) {
		trimmed := strings.TrimSpace(line)
		body = body || strings.HasPrefix(line, "pipeline:")
		if rest, ok := strings.CutPrefix(trimmed, "# "); ok && body && looksLikeSetting(rest) {
			line = strings.Replace(line, "# ", "", 1)
		}
		uncommented.WriteString(line)
	}
	text := strings.NewReplacer("mode: insert ", "mode: upsert ", "/run/secrets/kafka_password", "secret", "/run/secrets/redis_password", "secret").Replace(uncommented.String())
	l, err := testLoad(t, text, Options{Environ: []string{"EFFECTONCE_DSN=postgres://effectonce@127.0.0.1/app"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if got := l.Config.Kafka.SASL.Mechanism; got != "SCRAM-SHA-512" {
		t.Errorf("mechanism is %q: nothing was uncommented", got)
	}
}

// looksLikeSetting tells name: value from a sentence.
func looksLikeSetting(line string) bool {
	name, _, found := strings.Cut(strings.TrimSpace(line), ":")
	return found && !strings.Contains(name, " ") && (len(settingsNamed(name)) > 0 || name == "source" || name == "received_at")
}

func resolvedSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	s, err := Schema()
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var again jsonschema.Schema
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	r, err := again.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// instance reads YAML the way an editor does.
func instance(t *testing.T, text string) any {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var out any
	if err := json.Unmarshal(encoded, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// The schema accepts what Load accepts, and refuses what it can see is wrong.
func TestSchema(t *testing.T) {
	s := resolvedSchema(t)
	good := map[string]string{
		"sample":       string(Sample()),
		"minimal":      minimal,
		"types":        minimal + "committers: 4\nbatch: {max_bytes: 8MiB, max_records: 5}\ninflight_bytes: 1024\nlog:\nadmin: {allow_remote: false}\n",
		"interpolated": minimal + "committers: ${N}\nbatch: {max_bytes: '${S}'}\nlog: {level: '${L:-info}'}\n",
		"key list":     strings.Replace(minimal, "key: order_id", "key: [a, header:b]", 1),
	}
	for name, text := range good {
		if err := s.Validate(instance(t, text)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, c := range []struct{ old, with string }{
		{"pipeline:", "pipelin:"},
		{"key: order_id", "partitioner: murmur3"},
		{"key: order_id", "committers: many"},
		{"key: order_id", "committers: -1"},
		{"key: order_id", "takeover: {grace: 2}"},
		{"key: order_id", "takeover: {grace: soon}"},
		{"key: order_id", "inflight_bytes: much"},
		{"key: order_id", "log: {levle: info}"},
		{"topics: [orders]", "topics: orders"},
		{"topics: [orders]", "group: x"},
	} {
		if err := s.Validate(instance(t, strings.Replace(minimal, c.old, c.with, 1))); err == nil {
			t.Errorf("%s was accepted", c.with)
		}
	}
}

// Every setting is described, for editors and for people.
func TestEverySettingIsDescribed(t *testing.T) {
	walkTypes(reflect.TypeFor[Config](), "", func(path string, f reflect.StructField) {
		if len(f.Tag.Get("jsonschema")) < 8 {
			t.Errorf("%s has no description", path)
		}
		if j, _, _ := strings.Cut(f.Tag.Get("json"), ","); j != settingName(f) {
			t.Errorf("%s is called %s in JSON", path, j)
		}
	})
}

// What config print writes is a configuration again.
func TestPrintedSettingsLoadAgain(t *testing.T) {
	text := minimal + "key_missing: coordinates\nbatch: {max_bytes: 3MiB}\ntakeover: {grace: 90s}\nadmin: {listen: '0.0.0.0:1', allow_remote: true}\n"
	text = strings.Replace(text, "topics: [orders]", "topics: [orders], start: 2026-01-31T00:00:00Z", 1)
	text = strings.Replace(text, "{order_id: order_id}", "{order_id: order_id, 'a.b c': /a.b/c, 'd''e': x, 'yes': \"header:a\"}", 1)
	first := mustLoad(t, text, Options{})
	printed, err := first.YAML()
	if err != nil {
		t.Fatal(err)
	}
	second := mustLoad(t, string(printed), Options{})
	if diff := cmp.Diff(first.Config, second.Config, cmp.AllowUnexported(Secret{}, DSN{})); diff != "" {
		t.Errorf("%s\n%s", diff, printed)
	}
}

// Files in the tree that claim to be configurations are checked as such.
func TestSampleFileIsEmbedded(t *testing.T) {
	onDisk, err := os.ReadFile("sample.yaml")
	if err != nil || string(onDisk) != string(Sample()) {
		t.Errorf("the sample is not the file: %v", err)
	}
}
