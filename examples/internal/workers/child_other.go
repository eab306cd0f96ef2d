//go:build !linux

package workers

import "syscall"

// Child returns no attributes. A worker ends with its input, and so with this process; a server
// does not.
func Child(syscall.Signal) *syscall.SysProcAttr { return nil }
