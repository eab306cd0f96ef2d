//go:build !linux

package main

import "syscall"

// attributes has nothing to offer here. A worker ends when its input does, and so notices
// that its parent is gone; a redis-server does not notice.
func attributes() *syscall.SysProcAttr { return nil }
