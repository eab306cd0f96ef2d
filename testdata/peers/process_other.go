//go:build !linux

package main

import "os/exec"

// asPostgres does nothing: PostgreSQL starts as this user.
func asPostgres(*exec.Cmd, string) error { return nil }

// launch starts a child. If this program is killed, the child goes on.
func launch(cmd *exec.Cmd) (*process, error) {
	p := &process{cmd: cmd, done: make(chan struct{})}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // Wait returns an error for a killed child
	}()
	return p, nil
}
