package config

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

func verbs() []string {
	return []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%b", "%t", "%p", "%T", "%10.3s", "% x", "%U", "%c", "%e", "%w"}
}

// hexed finds the canary in the clear and in the forms that verbs give bytes.
func leaks(text string) bool {
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), fmt.Sprintf("% x", canary), fmt.Sprintf("%v", []byte(canary))} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

func TestSecretsAreNeverPrinted(t *testing.T) {
	config := Config{
		Kafka:    Kafka{SASL: SASL{Password: NewSecret(canary), ClientSecret: NewSecret(canary)}},
		Postgres: Postgres{Password: NewSecret(canary), DSN: NewDSN("postgres://u:" + canary + "@h/d")},
	}
	values := map[string]any{
		"secret": config.Postgres.Password, "secret pointer": &config.Postgres.Password,
		"dsn": config.Postgres.DSN, "dsn pointer": &config.Postgres.DSN,
		"config": config, "config pointer": &config, "slice": []Secret{NewSecret(canary)}, "map": map[string]any{"a": NewSecret(canary)},
	}
	for name, v := range values {
		for _, verb := range verbs() {
			if text := fmt.Sprintf(verb, v); leaks(text) {
				t.Errorf("%s with %s: %s", name, verb, text)
			}
		}
		if text := fmt.Sprint(v) + fmt.Sprintln(v) + fmt.Errorf("x: %v", v).Error(); leaks(text) {
			t.Errorf("%s printed: %s", name, text)
		}
		if text, err := json.Marshal(v); err != nil || leaks(string(text)) {
			t.Errorf("%s as JSON: %s, %v", name, text, err)
		}
		if text, err := yaml.Marshal(v); err != nil || leaks(string(text)) {
			t.Errorf("%s as YAML: %s, %v", name, text, err)
		}
	}
	if text, err := xml.Marshal(config.Postgres.Password); err != nil || leaks(string(text)) {
		t.Errorf("as XML: %s, %v", text, err)
	}
	if NewSecret(canary).Reveal() != canary || NewSecret(canary).String() != Mask || NewSecret("").String() != "" {
		t.Error("a secret is not what was put in, or prints otherwise than ***")
	}
}

func TestConnectionStringsArePrintedWithoutSecrets(t *testing.T) {
	for in, want := range map[string]string{
		"":                                        "",
		"postgres://u:hunter2@h:5432/d":           "postgres://u:***@h:5432/d",
		"postgresql://u:hunter2@h/d?sslmode=x":    "postgresql://u:***@h/d?sslmode=x",
		"postgres://u@h/d":                        "postgres://u@h/d",
		"postgres://h/d":                          "postgres://h/d",
		"postgres://u:hunter2@a:1,b:2/d":          "postgres://u:***@a:1,b:2/d",
		"postgres://u:hun%2Fter2@h/d":             "postgres://u:***@h/d",
		"postgres://u:hun/hunter2@h/d":            "***",
		"postgres://u:12/hunter2@h/d":             "***",
		"postgres://u:hun?hunter2@h/d":            "***",
		"postgres://u:hun#hunter2@h/d":            "***",
		"postgres://u:a@hunter2@h/d":              "***",
		"postgres:///d?user=u&password=hunter2":   "postgres:///d?user=u&password=***",
		"postgres:///d?pasword=hunter2":           "postgres:///d?pasword=***",
		"postgres:///d?%70assword=hunter2":        "postgres:///d?***=***",
		"postgres:///d?sslpassword=hunter2&a":     "postgres:///d?sslpassword=***&a=***",
		"host=h user=u password=hunter2 dbname=d": "host=h user=u password=*** dbname=d",
		"host=h password='hunter2 x' user=u":      "host=h password=*** user=u",
		`password='hun\'hunter2' user=u`:          "password=*** user=u",
		`password=a\ hunter2 user=u`:              "password=*** user=u",
		"password = hunter2":                      "password=***",
		"pasword=hunter2":                         "pasword=***",
		"PASSWORD=hunter2":                        "PASSWORD=***",
		"password='hunter2":                       "***",
		"hunter2":                                 "***",
		"u:hunter2@h/d?sslmode=disable":           "***",
		"mysql://u:hunter2@h/d?a=b":               "***",
		"host='a b'":                              "host='a b'",
		"options='-c hunter2=1'":                  "options=***",
	} {
		if got := NewDSN(in).String(); got != want {
			t.Errorf("%s is printed as %s, want %s", in, got, want)
		}
	}
}

// A value from ${file:…} is a secret wherever it is used, and is masked in
// both forms of the printout; so is a message that would quote it.
func TestValuesFromFilesAreMasked(t *testing.T) {
	text := strings.NewReplacer(
		"user: effectonce", "user: '${file:secret}', password: x",
		"name: orders", "name: 'x${file:secret}'",
		"{order_id: order_id}", "{order_id: '${file:secret}'}",
		"[orders]", "[orders, '${file:secret}']",
	).Replace(minimal)
	l := mustLoad(t, text, Options{Set: []string{"postgres.password=" + canary}})
	out, err := l.YAML()
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := json.Marshal(l.Printout())
	if err != nil {
		t.Fatal(err)
	}
	if printed := string(out) + string(encoded); leaks(printed) {
		t.Error(printed)
	}
	if l.Config.Postgres.User != canary || l.Config.Kafka.Topics[1] != canary {
		t.Error("masking changed the value itself")
	}

	_, err = testLoad(t, strings.Replace(minimal, "key: order_id", "key: 'kafka:${file:secret}'", 1), Options{})
	if err == nil || leaks(err.Error()) {
		t.Errorf("got %v", err)
	}
}
