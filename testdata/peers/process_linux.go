package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// launch starts a child that the kernel ends if this program ends before it.
func launch(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel watches the thread that started the child, and not the
		// program, so that thread must not end earlier.
		runtime.LockOSThread()
		defer close(p.done)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // Wait returns an error for a killed child
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}
