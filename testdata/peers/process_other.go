//go:build !linux

package main

import "os/exec"

// launch starts a child. If this program is killed, it goes on.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // it is killed, which is an error here
	}()
	return p, nil
}
