//go:build !linux

package e2e

import "syscall"

// dieWithUs is the cleanup's matter here: no kernel but Linux ends a child.
func dieWithUs() *syscall.SysProcAttr { return nil }
