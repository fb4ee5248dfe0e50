package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// directory is where this run's binaries are.
var directory = sync.OnceValues(func() (string, error) { return os.MkdirTemp("", "effectonce-e2e-") })

// The binaries, each built once a run.
var (
	processor = sync.OnceValues(func() (string, error) { return build("processor") })
	mutated   = sync.OnceValues(func() (string, error) { return build("mutant", "-tags", "mutant") })
)

func TestMain(m *testing.M) {
	m.Run()
	if dir, err := directory(); err == nil {
		_ = os.RemoveAll(dir) // a temporary directory that stays is no fault of the tests
	}
}

func build(name string, flags ...string) (string, error) {
	dir, err := directory()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	args := append([]string{"build", "-trimpath", "-o", path}, flags...)
	cmd := exec.CommandContext(context.Background(), "go", append(args, "effectonce/cmd/processor")...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", errors.Join(fmt.Errorf("build %s: %w", name, err), errors.New(string(out)))
	}
	return path, nil
}
