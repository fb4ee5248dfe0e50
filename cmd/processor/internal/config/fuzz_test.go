package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// No file, variable or --set makes the loader panic, hang, or answer with
// something that is neither a configuration nor faults; and no secret that is
// where a secret belongs is ever part of the answer.
func FuzzLoad(f *testing.F) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text), "log.level=debug", "warn")
	}
	f.Add(minimal, "kafka.sasl.password=x", "${A}")
	f.Add(string(Sample()), "postgres.dsn=postgres://u:p@h/d", "a,b")
	f.Add("a: &a [*a, *a]\nb: *a\n", "a.b.c.d=e", "")
	f.Add(strings.Repeat("[", 500), "kafka=x", "x")
	f.Fuzz(func(t *testing.T, text, set, value string) {
		o := Options{
			Set:     []string{set},
			Environ: []string{"EFFECTONCE_LOG__LEVEL=" + value, "EFFECTONCE_KAFKA__SASL__PASSWORD=" + canary, "A=" + value},
		}
		l, err := testLoad(t, text, o)
		if err == nil {
			if _, err := l.YAML(); err != nil {
				t.Errorf("print: %v", err)
			}
			_ = l.Warnings()
			return
		}
		var faults Faults
		if !errors.As(err, &faults) || len(faults) == 0 {
			t.Fatalf("got %v, want faults", err)
		}
		if mentioned := strings.Contains(text+set+value, canary); !mentioned && strings.Contains(err.Error(), canary) {
			t.Errorf("a secret is shown: %v", err)
		}
	})
}
