//go:build unix && !linux

package embedded

import "syscall"

// attributes puts the child into a process group of its own. Nothing but the pipe
// tells it of our end.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
