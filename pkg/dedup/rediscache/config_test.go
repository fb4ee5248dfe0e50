package rediscache

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestValidate(t *testing.T) {
	t.Parallel()
	login := func() (string, string) { return "", "" }
	for name, test := range map[string]struct {
		cfg  Config
		want []string
	}{
		"the least":  {Config{Addresses: []string{"redis:6379"}}, nil},
		"IPv6":       {Config{Addresses: []string{"[::1]:6379"}}, nil},
		"Sentinel":   {Config{Addresses: []string{"a:1", "b:2"}, Sentinel: "m", SentinelLogin: login, Database: 3}, nil},
		"Cluster":    {Config{Addresses: []string{"a:1", "b:2"}, Cluster: true, Login: login}, nil},
		"no address": {Config{}, []string{"redis: no address"}},
		"everything": {
			Config{
				Addresses: []string{"redis", ":6379", "redis://redis:6379"}, SentinelLogin: login, Database: -1, TTL: -1, Timeout: -1,
				MaxBytes: -1, Failures: -1, Pause: -1,
			},
			[]string{
				`redis: "redis" is not host:port`,
				`redis: ":6379" is not host:port`,
				`redis: "redis://redis:6379" is not host:port`,
				"redis: several addresses are Sentinels or a Cluster: say which",
				"redis: a login for Sentinels, but no Sentinel",
				"redis: database -1 is negative",
				"redis: a TTL of -1ns is no time",
				"redis: timeout -1ns is negative",
				"redis: images of -1 bytes are negative",
				"redis: -1 failures are negative",
				"redis: pause -1ns is negative",
			},
		},
		"both":                  {Config{Addresses: []string{"a:1"}, Sentinel: "m", Cluster: true}, []string{"redis: either Sentinels or a Cluster"}},
		"a Cluster's database":  {Config{Addresses: []string{"a:1"}, Cluster: true, Database: 1}, []string{"redis: a Cluster has only database 0, not 1"}},
		"a TTL Redis cannot do": {Config{Addresses: []string{"a:1"}, TTL: time.Microsecond}, []string{"redis: a TTL of 1µs is no time"}},
	} {
		var got []string
		if err := test.cfg.Validate(); err != nil {
			got = strings.Split(err.Error(), "\n")
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		c, err := New(test.cfg)
		if (err == nil) != (test.want == nil) {
			t.Errorf("%s: New: %v", name, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}

func TestDefaults(t *testing.T) {
	t.Parallel()
	got := Config{}.withDefaults()
	want := Config{
		Prefix: "effectonce:", TTL: 7 * 24 * time.Hour, Timeout: 250 * time.Millisecond, MaxBytes: 2 << 30, Failures: 5, Pause: 10 * time.Second,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	set := Config{Prefix: "p", TTL: 1, Timeout: 2, MaxBytes: 3, Failures: 4, Pause: 5}
	if diff := cmp.Diff(set, set.withDefaults()); diff != "" {
		t.Error(diff)
	}
}

// No way of printing a configuration or a cache shows a password.
func TestSecretsAreNotPrinted(t *testing.T) {
	t.Parallel()
	const secret = "hunter2-secret"
	cfg := Config{
		Addresses: []string{"127.0.0.1:1"}, Sentinel: "m", Login: func() (string, string) { return "u", secret },
		SentinelLogin: func() (string, string) { return "u", secret },
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if text := fmt.Sprintf(verb, cfg); strings.Contains(text, secret) || strings.Contains(text, fmt.Sprintf("%x", secret)) {
			t.Errorf("%s: %s", verb, text)
		}
	}
	cfg.Addresses = nil
	if err := cfg.Validate(); err == nil || strings.Contains(err.Error(), secret) {
		t.Error(err)
	}
}
