package embedded

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
)

// Account is a user that a child runs under.
type Account struct {
	Name     string
	UID, GID uint32
}

// unprivileged returns an account for what refuses root: postgres' own, else
// nobody. It is nil unless we are root.
func unprivileged() *Account {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, errUID := strconv.ParseUint(u.Uid, 10, 32)
		gid, errGID := strconv.ParseUint(u.Gid, 10, 32)
		if errUID == nil && errGID == nil && uid != 0 {
			return &Account{Name: name, UID: uint32(uid), GID: uint32(gid)}
		}
	}
	const overflow = 65534 // the kernel's nobody, where /etc/passwd has none
	return &Account{Name: "uid 65534", UID: overflow, GID: overflow}
}

// TempDir makes a temporary directory that every account may pass through but not
// list, so that a child under another account can have a directory inside.
func TempDir() (string, error) {
	base := os.TempDir()
	if os.Geteuid() == 0 && !passable(base) {
		base = "/tmp"
	}
	dir, err := os.MkdirTemp(base, "effectonce-demo-")
	if err != nil {
		return "", fmt.Errorf("temporary directory: %w", err)
	}
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // passing through is what it is for
		return "", errors.Join(fmt.Errorf("temporary directory: %w", err), os.Remove(dir))
	}
	return dir, nil
}

// passable reports whether every account may pass through dir and what is above it.
func passable(dir string) bool {
	for {
		info, err := os.Stat(dir)
		if err != nil || info.Mode()&0o001 == 0 {
			return false
		}
		up := filepath.Dir(dir)
		if up == dir {
			return true
		}
		dir = up
	}
}
