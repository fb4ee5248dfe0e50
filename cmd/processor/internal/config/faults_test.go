package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

const canary = "hunter2"

// secretFile stands in for the file system: one file, which holds the canary.
func secretFile(path string) ([]byte, error) {
	if path == "secret" {
		return []byte(canary + "\n"), nil
	}
	return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
}

func testLoad(tb testing.TB, text string, o Options) (*Loaded, error) {
	tb.Helper()
	if o.File == "" {
		o.File = "orders.yaml"
	}
	return load([]byte(text), o, lookup{env: environ(o.Environ), file: secretFile})
}

// What a person reads is held word for word, carets included.
func TestFaultsReadAsTheyShould(t *testing.T) {
	files, err := filepath.Glob("testdata/faults/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			_, err = testLoad(t, string(text), Options{File: filepath.Base(file)})
			var faults Faults
			if !errors.As(err, &faults) {
				t.Fatalf("got %v, want faults", err)
			}
			got := faults.Error() + "\n"
			if strings.Contains(got, canary) {
				t.Errorf("a secret is shown:\n%s", got)
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Three faults in one file are three lines of one report, each at its place.
func TestThreeFaultsAreThree(t *testing.T) {
	text, err := os.ReadFile("testdata/faults/three.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, err = testLoad(t, string(text), Options{})
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("got %v, want faults", err)
	}
	var at []string
	for _, f := range faults {
		at = append(at, f.Origin.String()+" "+f.Path)
	}
	want := []string{"orders.yaml:5:3 kafka.grup", "orders.yaml:8:9 postgres.port", "orders.yaml:15:11 sink.table.mode"}
	if diff := cmp.Diff(want, at); diff != "" {
		t.Error(diff)
	}
}
