package workers

import "syscall"

// Child returns attributes of a process that the kernel ends by a signal when this process ends. A
// terminal's Ctrl-C does not reach it.
func Child(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: end, Setpgid: true}
}
