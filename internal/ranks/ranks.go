package ranks

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Entry is one row of the table: a directory with everything below it, unless a
// longer entry has it.
type Entry struct {
	Dir    string
	Rank   int
	Helper bool     // for tests only; Rank and Owns say nothing
	Owns   []string // third-party modules it may import; a lone "*" is any
}

const (
	pgx     = "github.com/jackc/pgx/v5"
	franz   = "github.com/twmb/franz-go"
	xsync   = "golang.org/x/sync"
	anyCode = "*"
)

// Table returns the ranks, lowest first.
func Table() []Entry {
	return []Entry{
		{Dir: "pkg/stream", Rank: 0},
		{Dir: "migrations", Rank: 0, Owns: []string{pgx, "github.com/pressly/goose/v3"}},
		{Dir: "internal/pgtx", Rank: 0, Owns: []string{pgx}},
		{Dir: "internal/model", Rank: 0},
		{Dir: "internal/mutant", Rank: 0},
		{Dir: "internal/ranks", Rank: 0},

		{Dir: "pkg/offsets", Rank: 1, Owns: []string{pgx}},
		{Dir: "pkg/dedup", Rank: 1, Owns: []string{pgx, xsync, "github.com/bits-and-blooms/bloom/v3"}},
		{Dir: "pkg/sink", Rank: 1, Owns: []string{pgx}},
		{Dir: "pkg/decode", Rank: 1, Owns: []string{
			"github.com/go-json-experiment/json", "github.com/twmb/avro", "github.com/bufbuild/protocompile",
			"google.golang.org/protobuf", franz + "/pkg/sr",
		}},

		{Dir: "pkg/dedup/rediscache", Rank: 2, Owns: []string{
			"github.com/redis/go-redis/v9", "github.com/failsafe-go/failsafe-go",
		}},
		{Dir: "pkg/rebalance", Rank: 2, Owns: []string{pgx, xsync, franz}},

		{Dir: "pkg/processor", Rank: 3, Owns: []string{
			pgx, xsync, franz, "github.com/rs/zerolog", "github.com/prometheus/client_golang",
		}},

		{Dir: "cmd/processor", Rank: 4, Owns: []string{anyCode}},
		{Dir: "examples", Rank: 4, Owns: []string{anyCode}},

		{Dir: "internal/e2e", Helper: true},
		{Dir: "cmd/processor/internal/verbtest", Helper: true},
	}
}

// Check reads the imports of every Go file below root, whatever its build
// constraints, and returns one sentence for each import that breaks the order of
// the table, sorted. Nested modules, hidden directories and testdata are not
// looked into.
func Check(root fs.FS, module string, table []Entry) ([]string, error) {
	var faults []string
	err := fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			return skip(root, name)
		case path.Ext(name) != ".go":
			return nil
		}
		found, err := checkFile(root, name, module, table)
		faults = append(faults, found...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read imports: %w", err)
	}
	slices.Sort(faults)
	return faults, nil
}

func skip(root fs.FS, dir string) error {
	if dir == "." {
		return nil
	}
	base := path.Base(dir)
	if base[0] == '.' || base[0] == '_' || base == "testdata" {
		return fs.SkipDir
	}
	if _, err := fs.Stat(root, path.Join(dir, "go.mod")); err == nil {
		return fs.SkipDir
	}
	return nil
}

func checkFile(root fs.FS, name, module string, table []Entry) ([]string, error) {
	src, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, src, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	from, ok := entryOf(path.Dir(name), table)
	if !ok {
		return []string{name + ": the directory has no rank"}, nil
	}
	if from.Helper || strings.HasSuffix(name, "_test.go") {
		return nil, nil
	}
	var faults []string
	for _, spec := range file.Imports {
		imported, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		if why := judge(from, imported, module, table); why != "" {
			faults = append(faults, fmt.Sprintf("%s: imports %s: %s", name, imported, why))
		}
	}
	return faults, nil
}

// judge says why from may not import this path, or nothing.
func judge(from Entry, imported, module string, table []Entry) string {
	dir, own := strings.CutPrefix(imported, module+"/")
	if !own {
		return judgeForeign(from, imported)
	}
	to, ok := entryOf(dir, table)
	switch {
	case !ok:
		return "it has no rank"
	case to.Dir == from.Dir:
		return ""
	case to.Helper:
		return "a test helper"
	case to.Rank >= from.Rank:
		return fmt.Sprintf("rank %d may not import rank %d", from.Rank, to.Rank)
	}
	return ""
}

func judgeForeign(from Entry, imported string) string {
	first, _, _ := strings.Cut(imported, "/")
	if !strings.Contains(first, ".") { // the standard library
		return ""
	}
	for _, owned := range from.Owns {
		if owned == anyCode || within(imported, owned) {
			return ""
		}
	}
	return "not one of this rank's modules"
}

// entryOf returns the longest entry that dir lies in. A directory of internal
// whose name ends in test is a helper without standing in the table.
func entryOf(dir string, table []Entry) (Entry, bool) {
	if name, ok := strings.CutPrefix(dir, "internal/"); ok {
		name, _, _ = strings.Cut(name, "/")
		if strings.HasSuffix(name, "test") {
			return Entry{Dir: "internal/" + name, Helper: true}, true
		}
	}
	var best Entry
	found := false
	for _, e := range table {
		if within(dir, e.Dir) && len(e.Dir) >= len(best.Dir) {
			best, found = e, true
		}
	}
	return best, found
}

func within(dir, parent string) bool {
	return dir == parent || strings.HasPrefix(dir, parent+"/")
}
