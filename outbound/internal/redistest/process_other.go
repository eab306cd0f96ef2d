//go:build !linux

package redistest

import (
	"errors"
	"os/exec"
)

// process is never started on this system, because find returns an error first.
type process struct{ done chan struct{} }

var errLinux = errors.New("servers are started on Linux only")

func launch(*exec.Cmd) (*process, error) { return nil, errLinux }

func (p *process) pid() int    { return 0 }
func (p *process) ended() bool { return true }
func (p *process) kill()       {}
func (p *process) stop() error { return errLinux }
func (p *process) cont() error { return errLinux }

func detach(*exec.Cmd) {}
