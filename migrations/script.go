package migrations

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
)

//go:embed *.sql
var files embed.FS

// oldest is the lowest schema version this binary works with. It rises when a
// release stops to support what a contraction will drop.
const oldest = 8 // stops are written down, decisions remember where they took a position back from

// script is one migration, its schema already named.
type script struct {
	version  int64
	name     string
	up, down string
}

// ErrName says that a schema or role cannot have this name; choose another.
var ErrName = errors.New("not a usable name")

// Range returns the lowest and the highest schema version this binary works with.
func Range() (lowest, highest int64) {
	names, err := files.ReadDir(".")
	if err != nil || len(names) == 0 {
		panic("migrations: nothing is embedded")
	}
	highest, _, err = parseName(names[len(names)-1].Name())
	if err != nil {
		panic(err)
	}
	return oldest, highest
}

// SQL returns what Up would do to a schema at version from, as one script to
// review or to run with psql: a transaction that leaves the same tables and the
// same version behind. From 0 it also creates the schema.
func SQL(schema string, from int64) (string, error) {
	scripts, err := load(schema)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("BEGIN;\n")
	if from <= 0 {
		fmt.Fprintf(&b, "CREATE SCHEMA IF NOT EXISTS %s;\n%s", quote(schema), createVersionTable(schema))
	}
	for _, s := range scripts {
		if s.version > from {
			fmt.Fprintf(&b, "\n%s\nINSERT INTO %s (version_id, is_applied) VALUES (%d, true);\n", strings.TrimSpace(s.up),
				versionTable(schema), s.version)
		}
	}
	b.WriteString("COMMIT;\n")
	return b.String(), nil
}

// load reads the embedded migrations in order. A file is split into its halves
// before the schema is named, so no name can move the border.
func load(schema string) ([]script, error) {
	if err := checkName(schema); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("embedded migrations: %w", err)
	}
	scripts := make([]script, 0, len(entries))
	for _, e := range entries {
		text, err := files.ReadFile(e.Name())
		if err != nil {
			return nil, fmt.Errorf("embedded migrations: %w", err)
		}
		s, err := parse(e.Name(), string(text))
		if err != nil {
			return nil, err
		}
		s.up = strings.ReplaceAll(s.up, "@schema@", quote(schema))
		s.down = strings.ReplaceAll(s.down, "@schema@", quote(schema))
		scripts = append(scripts, s)
	}
	return scripts, nil
}

func parse(file, text string) (script, error) {
	version, name, err := parseName(file)
	if err != nil {
		return script{}, err
	}
	_, text, up := strings.Cut(text, "-- +goose Up\n")
	before, after, down := strings.Cut(text, "-- +goose Down\n")
	if !up || !down {
		return script{}, fmt.Errorf("%s: lacks an Up or a Down half", file)
	}
	return script{version, name, plain(before), plain(after)}, nil
}

// parseName takes 0001_schema.sql apart.
func parseName(file string) (version int64, name string, err error) {
	number, name, ok := strings.Cut(strings.TrimSuffix(file, path.Ext(file)), "_")
	version, err = strconv.ParseInt(number, 10, 64)
	if !ok || err != nil || version < 1 {
		return 0, "", fmt.Errorf("%s: not named like 0001_name.sql", file)
	}
	return version, name, nil
}

// plain drops the lines that only goose reads.
func plain(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "-- +goose") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// maxName is Postgres's limit for an identifier, in bytes. The server would cut
// a longer one without an error, and two schemas could become one.
const maxName = 63

func checkName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrName)
	case len(name) > maxName:
		return fmt.Errorf("%w: %q has %d bytes, Postgres allows %d", ErrName, name, len(name), maxName)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%w: %q contains a NUL byte", ErrName, name)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q is not UTF-8", ErrName, name)
	case strings.Contains(name, "$$"):
		return fmt.Errorf("%w: %q contains $$, which ends the body of a function", ErrName, name)
	}
	return nil
}

func quote(parts ...string) string { return pgx.Identifier(parts).Sanitize() }
