package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
)

// process is a child. On Linux the kernel ends it if this process ends before it.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{} // closed when it has ended and all that it wrote was read
	err   error         // why it has ended; after done
}

// starter runs the functions that start children. The kernel's promise to end a child is tied
// to the thread that started it, so this goroutine keeps one thread for itself, for good.
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

// start starts a program and passes its output to read, until that returns.
func start(cmd *exec.Cmd, read func(io.Reader)) (*process, error) {
	cmd.SysProcAttr = attributes()
	said := new(tail)
	cmd.Stderr = said
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	c := &process{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		read(stdout)
		_, _ = io.Copy(io.Discard, stdout) // only its end matters
		c.err = cmd.Wait()
		if words := strings.TrimSpace(said.String()); c.err != nil && words != "" {
			c.err = fmt.Errorf("%w; it says: %s", c.err, words)
		}
	}()
	return c, nil
}

// startWorker starts a process of this program as a worker, and calls hear with each of its
// reports.
func startWorker(o order, hear func(report)) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	c, err := start(cmd, func(out io.Reader) {
		lines := json.NewDecoder(out)
		for {
			var r report
			if lines.Decode(&r) != nil { // the end, or half a line of a worker that was killed
				return
			}
			hear(r)
		}
	})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(o)
	if err == nil {
		err = c.tell(string(text))
	}
	if err != nil {
		c.kill()
		return nil, err
	}
	return c, nil
}

// tell writes a line to the child.
func (c *process) tell(line string) error {
	_, err := io.WriteString(c.stdin, line+"\n")
	return err
}

// kill ends the child, at once, and returns when it is gone.
func (c *process) kill() {
	_ = c.cmd.Process.Kill() // it may have ended already
	<-c.done
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const most = 2000
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-most):]
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.text)
}
