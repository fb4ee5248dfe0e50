package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The snippet in the README did not compile. It must, as it is printed, inside a
// function with the imports it names.
func TestReadmeSnippetCompiles(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(readme), "```go\n")
	snippet, _, found := strings.Cut(rest, "```\n")
	if !found {
		t.Fatal("no Go snippet in the README")
	}
	var b strings.Builder
	b.WriteString("package main\n\nimport (\n")
	for _, path := range []string{
		"context", "encoding/json", "os", "github.com/jackc/pgx/v5/pgxpool", "github.com/rs/zerolog", "github.com/twmb/franz-go/pkg/kgo",
		"effectonce/pkg/processor", "effectonce/pkg/sink", "effectonce/pkg/stream",
	} {
		b.WriteString("\t\"" + path + "\"\n")
	}
	b.WriteString(")\n\nfunc main() { _ = run(context.Background()) }\n\nfunc run(ctx context.Context) error {\n" + snippet + "}\n")
	file := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	// In this module, whose packages it imports.
	if out, err := exec.CommandContext(t.Context(), "go", "vet", file).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
