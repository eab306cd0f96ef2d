package redistest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// process is a child that the kernel ends if this process ends before it.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has ended and this process has waited for it
}

// starter runs the functions that start children. The kernel ends a child when the thread that
// started it ends. So this goroutine keeps a thread of its own until the process ends.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func launch(cmd *exec.Cmd) (*process, error) {
	// In a group of its own the child gets no Ctrl-C that is meant for the
	// test. It would end the child in the middle of that test's cleanup.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		_ = cmd.Wait() // Wait returns an error for a killed server
	}()
	return p, nil
}

func (p *process) pid() int { return p.cmd.Process.Pid }

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill ends the child, even if it is stopped, and returns when it is gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.done
}

// stop returns when the child stands still: sending the signal is not enough.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for !p.ended() {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.pid()) + "/stat")
		if err != nil {
			return err
		}
		// The state stands behind the name, which is in parentheses.
		if _, after, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(after, "T") {
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	return errors.New("it has ended")
}

func (p *process) cont() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// detach keeps a Ctrl-C that is meant for the test away from a child.
func detach(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }
