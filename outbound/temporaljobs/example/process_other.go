//go:build !linux

package main

import "syscall"

// apart has nothing to offer here: a Ctrl-C ends the child together with its parent.
func apart() *syscall.SysProcAttr { return nil }
