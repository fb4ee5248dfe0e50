package ranks_test

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"effectonce/internal/ranks"
)

func TestThisModuleKeepsTheRanks(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	faults, err := ranks.Check(os.DirFS(root), "effectonce", ranks.Table())
	if err != nil {
		t.Fatal(err)
	}
	for _, fault := range faults {
		t.Error(fault)
	}
}

func TestEntriesOfTheTableAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, e := range ranks.Table() {
		if seen[e.Dir] {
			t.Errorf("%s stands in the table twice", e.Dir)
		}
		seen[e.Dir] = true
	}
}

func TestCheckFindsEveryKindOfFault(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		file string
		src  string
		want []string
	}{
		{
			name: "lower rank",
			file: "pkg/offsets/a.go",
			src:  `package offsets; import _ "effectonce/pkg/stream"; import _ "github.com/jackc/pgx/v5/pgconn"`,
		},
		{
			name: "own entry",
			file: "cmd/processor/main.go",
			src:  `package main; import _ "effectonce/cmd/processor/internal/config"`,
		},
		{
			name: "equal rank",
			file: "pkg/offsets/a.go",
			src:  `package offsets; import _ "effectonce/pkg/dedup"`,
			want: []string{"pkg/offsets/a.go: imports effectonce/pkg/dedup: rank 1 may not import rank 1"},
		},
		{
			name: "higher rank",
			file: "pkg/dedup/a.go",
			src:  `package dedup; import _ "effectonce/pkg/dedup/rediscache"`,
			want: []string{"pkg/dedup/a.go: imports effectonce/pkg/dedup/rediscache: rank 1 may not import rank 2"},
		},
		{
			name: "foreign code",
			file: "pkg/dedup/a.go",
			src:  `package dedup; import _ "github.com/redis/go-redis/v9"`,
			want: []string{"pkg/dedup/a.go: imports github.com/redis/go-redis/v9: not one of this rank's modules"},
		},
		{
			name: "a module whose name only begins alike",
			file: "pkg/dedup/a.go",
			src:  `package dedup; import _ "github.com/jackc/pgx/v50"`,
			want: []string{"pkg/dedup/a.go: imports github.com/jackc/pgx/v50: not one of this rank's modules"},
		},
		{
			name: "a file that this platform does not build",
			file: "pkg/stream/a_plan9.go",
			src:  "//go:build plan9\n\npackage stream; import _ \"effectonce/pkg/offsets\"",
			want: []string{"pkg/stream/a_plan9.go: imports effectonce/pkg/offsets: rank 0 may not import rank 1"},
		},
		{
			name: "test helper in production code",
			file: "pkg/sink/a.go",
			src:  `package sink; import _ "effectonce/internal/pgtest"`,
			want: []string{"pkg/sink/a.go: imports effectonce/internal/pgtest: a test helper"},
		},
		{
			name: "test helper in a test",
			file: "pkg/sink/a_test.go",
			src:  `package sink_test; import _ "effectonce/internal/pgtest"; import _ "go.uber.org/goleak"`,
		},
		{
			name: "no rank",
			file: "pkg/util/a.go",
			src:  `package util`,
			want: []string{"pkg/util/a.go: the directory has no rank"},
		},
		{
			name: "import of something without a rank",
			file: "cmd/processor/main.go",
			src:  `package main; import _ "effectonce/pkg/util"`,
			want: []string{"cmd/processor/main.go: imports effectonce/pkg/util: it has no rank"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := fstest.MapFS{tt.file: {Data: []byte(tt.src)}}
			got, err := ranks.Check(root, "effectonce", ranks.Table())
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCheckLeavesOtherModulesAlone(t *testing.T) {
	t.Parallel()
	bad := &fstest.MapFile{Data: []byte(`package x; import _ "effectonce/pkg/dedup"`)}
	root := fstest.MapFS{
		"tools/go.mod":           {Data: []byte("module effectonce/tools\n")},
		"tools/x.go":             bad,
		".services/x.go":         bad,
		"pkg/sink/testdata/x.go": bad,
	}
	got, err := ranks.Check(root, "effectonce", ranks.Table())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 0 {
		t.Errorf("faults in files that are not the module's: %v", got)
	}
}
