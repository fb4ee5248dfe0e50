//go:build unix && !linux

package embedded

import "syscall"

// KernelTells says whether a child learns of our end by Spec.Orphaned.
const KernelTells = false

// attributes puts the child into a process group of its own. Nothing but the pipe
// tells it of our end.
func attributes(syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
