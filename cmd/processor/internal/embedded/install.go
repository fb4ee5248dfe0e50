package embedded

import (
	"context"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// oldest is the lowest major version of Postgres that the schema works with.
const oldest = 14

// install is a Postgres on this machine.
type install struct {
	root    string // the directory above bin
	version string // as the server prints it, 15.4
	major   int
}

// installed returns the newest Postgres that can be found, false if none is new
// enough. A directory without all of the server's programs does not count: many
// machines have the client alone.
func installed(ctx context.Context) (install, bool) {
	var best install
	for _, bin := range candidates(ctx) {
		if found, ok := inspect(ctx, bin); ok && found.major > best.major {
			best = found
		}
	}
	return best, best.major >= oldest
}

// candidates lists directories that may hold initdb: what pg_config says, where
// distributions and installers put it, and the search path.
func candidates(ctx context.Context) []string {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/usr/local/pgsql/bin",
		"/opt/homebrew/opt/postgresql*/bin", "/usr/local/opt/postgresql*/bin",
		"/Library/PostgreSQL/*/bin", "/Applications/Postgres.app/Contents/Versions/*/bin",
	} {
		found, err := filepath.Glob(pattern)
		if err == nil { // the only error is a malformed pattern
			dirs = append(dirs, found...)
		}
	}
	if path, err := exec.LookPath("initdb"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			path = target
		}
		dirs = append(dirs, filepath.Dir(path))
	}
	return dirs
}

var versionLine = regexp.MustCompile(`PostgreSQL\) ((\d+)\S*)`)

func inspect(ctx context.Context, bin string) (install, bool) {
	if filepath.Base(bin) != "bin" {
		return install{}, false
	}
	for _, program := range []string{"initdb", "pg_ctl"} {
		if _, err := exec.LookPath(filepath.Join(bin, program)); err != nil {
			return install{}, false
		}
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output() //nolint:gosec // a path we found
	if err != nil {
		return install{}, false
	}
	m := versionLine.FindStringSubmatch(string(out))
	if m == nil {
		return install{}, false
	}
	major, err := strconv.Atoi(m[2])
	return install{root: filepath.Dir(bin), version: m[1], major: major}, err == nil
}
