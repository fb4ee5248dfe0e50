package migrations

import (
	"errors"
	"io/fs"
	"strings"
	"testing"
)

func TestCheckServer(t *testing.T) {
	t.Parallel()
	for num, ok := range map[int]bool{90624: false, 130014: false, 139999: false, 140000: true, 150018: true, 180001: true} {
		if err := checkServer(num); errors.Is(err, ErrServerTooOld) == ok || (err == nil) != ok {
			t.Errorf("%d: %v", num, err)
		}
	}
	if err := checkServer(130014); !strings.Contains(err.Error(), "13.14") {
		t.Errorf("%q does not name the version found", err)
	}
}

// Every half of every migration sets for its transaction what a session may have
// set otherwise, and no comment holds the schema's name: a line break in it would
// end the comment.
func TestEveryMigrationIsGuarded(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		text, err := files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := parse(name, string(text))
		if err != nil {
			t.Fatal(err)
		}
		if s.version != int64(i)+1 {
			t.Errorf("%s: version %d follows %d", name, s.version, i)
		}
		for _, half := range []string{s.up, s.down} {
			for _, want := range []string{"SET LOCAL search_path = pg_catalog, pg_temp;", "SET LOCAL lock_timeout", "SET LOCAL statement_timeout"} {
				if !strings.Contains(half, want) {
					t.Errorf("%s: a half lacks %s", name, want)
				}
			}
			for line := range strings.Lines(half) {
				if _, comment, ok := strings.Cut(line, "--"); ok && strings.Contains(comment, "@schema@") {
					t.Errorf("%s: the schema's name stands in a comment: %s", name, line)
				}
			}
			functions, bodies := strings.Count(half, "CREATE FUNCTION")+strings.Count(half, "CREATE OR REPLACE FUNCTION"), strings.Count(half, "SET search_path = pg_catalog, pg_temp AS $$")
			if functions != bodies {
				t.Errorf("%s: %d functions, %d with a search path of their own", name, functions, bodies)
			}
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for file, text := range map[string]string{
		"schema.sql":      "-- +goose Up\n-- +goose Down\n",
		"0000_zero.sql":   "-- +goose Up\n-- +goose Down\n",
		"0001_nodown.sql": "-- +goose Up\nSELECT 1;\n",
		"0001_noup.sql":   "-- +goose Down\n",
	} {
		if s, err := parse(file, text); err == nil {
			t.Errorf("%s: %+v", file, s)
		}
	}
}
