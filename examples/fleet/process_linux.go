package main

import "syscall"

// attributes makes the kernel end a child with its parent, and keeps a terminal's Ctrl-C from
// the child: the parent ends it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
