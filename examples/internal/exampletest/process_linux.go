package exampletest

import (
	"bufio"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// End runs the test's binary with a variable and arguments, and calls harm once a line of its
// output has a text. Then the program and all of its children must end. Its folder for temporary
// files must be empty, except after a kill. End returns the output with the errors, and the exit
// status.
func End(t *testing.T, env string, args []string, text string, harm func(program *os.Process, children []int)) (output string, status int) {
	t.Helper()
	dir := t.TempDir()
	_ = os.Chmod(dir, 0o755) // a server may be another user's
	_ = os.Chmod(filepath.Dir(dir), 0o755)
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), env+"=1", "TMPDIR="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill() // in case it does not end
	lines := bufio.NewScanner(out)
	for lines.Scan() && !strings.Contains(lines.Text(), text) {
		output += lines.Text() + "\n"
	}
	running := children(t, cmd.Process.Pid)
	harm(cmd.Process, running)
	for lines.Scan() {
		output += lines.Text() + "\n"
	}
	_ = cmd.Wait() // the status says the same
	status = cmd.ProcessState.ExitCode()
	for deadline := time.Now().Add(30 * time.Second); slices.ContainsFunc(running, runs); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			for _, pid := range running {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
			t.Fatalf("some of the children %v are running", running)
		}
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 && status >= 0 {
		t.Errorf("the program leaves %v, %v", files, err)
	}
	return output, status
}

// children returns the ids of a process's children, by all of its threads.
func children(t *testing.T, pid int) (ids []int) {
	t.Helper()
	lists, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/children") // the pattern is valid
	if len(lists) == 0 {
		t.Skip("this kernel does not list the children of a process")
	}
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for field := range strings.FieldsSeq(string(text)) {
			id, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, id)
		}
	}
	return ids
}

// runs reports whether a process runs. A zombie does not.
func runs(pid int) bool { return !strings.ContainsAny(stateOf(pid), "ZX") }

// stateOf returns the letter of a process's state, or X if there is none.
func stateOf(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	// The state stands behind the name, in parentheses.
	if _, state, ok := strings.Cut(string(stat), ") "); err == nil && ok {
		return state[:1]
	}
	return "X"
}

// Outage stops a store's server for a while. Meanwhile the store must be unavailable, and no call
// may count twice.
func Outage(t *testing.T, s store.Store, server *os.Process) {
	t.Helper()
	bucket := outbound.Must(outbound.NewSharedBucket(s, "outage", outbound.Limit{Capacity: 10, LeakRate: 1e-5}))
	admitted := 0
	call := func() error {
		_, err := bucket.Acquire(t.Context(), outbound.Cost{1})
		if err == nil {
			admitted++
		}
		return err
	}
	if err := call(); err != nil {
		t.Fatal(err)
	}
	_ = server.Signal(syscall.SIGSTOP)
	for stateOf(server.Pid) != "T" {
		time.Sleep(time.Millisecond)
	}
	if err := call(); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("while the server hangs the error is %v", err)
	}
	_ = server.Signal(syscall.SIGCONT)
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end) && !errors.Is(err, outbound.ErrThrottled); {
		err = call()
	}
	if admitted < 9 || admitted > 10 {
		t.Errorf("%d calls are admitted, and the capacity is 10: %v", admitted, err)
	}
}
