package e2e

import "syscall"

// dieWithUs has the kernel kill a child when the test process is killed.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
