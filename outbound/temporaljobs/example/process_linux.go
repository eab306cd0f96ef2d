package main

import "syscall"

// apart makes the kernel end a child with its parent, and keeps a terminal's Ctrl-C from it: the
// parent ends it.
func apart() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
