package main

import "os/exec"

// process is a child.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the child and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}
