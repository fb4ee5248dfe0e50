package embedded

import "syscall"

// KernelTells says whether a child learns of our end by Spec.Orphaned.
const KernelTells = true

// attributes puts the child into a process group of its own and has the kernel
// signal it when we die. The signal follows the thread that forked, not the
// process; the Go runtime ends a thread early only if a goroutine locked it, and
// nobody here does.
func attributes(orphaned syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: orphaned}
}
