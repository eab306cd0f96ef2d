package exampletest

import (
	"bytes"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

// Dir returns a folder for a server, which goes with the test. Its path is short enough for a
// socket's.
func Dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "server")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Program returns the path of a program. If it is not installed the test is skipped, or fails where
// the variable DRIPFEED_REQUIRE_ with that name is set.
func Program(t *testing.T, require, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/" + program)
	}
	switch {
	case err != nil && os.Getenv("DRIPFEED_REQUIRE_"+require) != "":
		t.Fatalf("there is no %s, and DRIPFEED_REQUIRE_%s says that it must not be missing", program, require)
	case err != nil:
		t.Skip("there is no " + program)
	}
	return path
}

// Server starts a server, a [Program], in a folder, waits until ready returns nil, and ends it with
// the test.
func Server(t *testing.T, require, dir string, ready func() error, program string, args ...string) *os.Process {
	t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(Program(t, require, program), args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, &log, &log, workers.Child(syscall.SIGKILL)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	for deadline := time.After(time.Minute); ; {
		err := ready()
		if err == nil {
			return cmd.Process
		}
		select {
		case <-time.After(10 * time.Millisecond):
			continue
		case <-deadline:
			_ = cmd.Process.Kill()
			<-ended
		case err = <-ended:
		}
		t.Fatalf("%s: %v\n%s", program, err, &log)
	}
}
