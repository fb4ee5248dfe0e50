package kafkatest

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The variables of .services/env that this package reads.
const (
	envBroker = "EFFECTONCE_TEST_KAFKA"
	envJars   = "EFFECTONCE_TEST_KAFKA_LIB"
)

// setting is the value of a variable: the environment's, else the one that
// scripts/services wrote down. The test fails when there is neither.
func setting(tb testing.TB, name string) string {
	tb.Helper()
	if value := os.Getenv(name); value != "" {
		return value
	}
	file, err := os.Open(filepath.Join(moduleRoot(tb), ".services", "env"))
	if err != nil {
		tb.Fatalf("%s is not set: run scripts/services up", name)
	}
	defer func() { _ = file.Close() }() // only read
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "export "+name+"="); ok {
			return value
		}
	}
	tb.Fatalf("%s is not in .services/env: run scripts/services up", name)
	return ""
}

// moduleRoot is the directory of go.mod; tests run in their package's.
func moduleRoot(tb testing.TB) string {
	tb.Helper()
	dir, err := os.Getwd()
	if err != nil {
		tb.Fatalf("working directory: %v", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			tb.Fatal("no go.mod above the working directory")
		}
		dir = parent
	}
}
