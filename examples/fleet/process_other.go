//go:build !linux

package main

import "syscall"

// attributes has nothing to offer here: a worker sees by the end of its input that
// its parent is gone, and a redis-server does not see it.
func attributes() *syscall.SysProcAttr { return nil }
