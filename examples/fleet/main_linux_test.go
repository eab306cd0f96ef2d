package main

import (
	"bufio"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// children returns the ids of a process's children, by all of its threads.
func children(t *testing.T, pid int) (ids []int) {
	t.Helper()
	dir := "/proc/" + strconv.Itoa(pid) + "/task/"
	threads, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		text, err := os.ReadFile(dir + thread.Name() + "/children")
		if err != nil {
			t.Skipf("this kernel does not tell whose child is whose: %v", err)
		}
		for _, id := range strings.Fields(string(text)) {
			n, err := strconv.Atoi(id)
			if err != nil {
				t.Fatal(err)
			}
			ids = append(ids, n)
		}
	}
	return ids
}

// gone reports whether a process has ended: a zombie has.
func gone(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true
	}
	// The state stands behind the name, which is in parentheses.
	_, state, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// A program that is ended in the middle leaves nothing running behind, however it is ended.
func TestProgram_LeavesNothingRunning(t *testing.T) {
	needRedis(t)
	for _, how := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(how.String(), func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-mode", "shared", "-workers", "2", "-seconds", "600")
			dir := t.TempDir()
			cmd.Env = append(os.Environ(), mainEnv+"=1", "TMPDIR="+dir)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer cmd.Process.Kill() // in case it is not gone
			lines := bufio.NewScanner(out)
			for lines.Scan() && !strings.Contains(lines.Text(), " s  shared") {
			}
			left := children(t, cmd.Process.Pid)
			if len(left) != 3 {
				t.Fatalf("it has %d children, want 2 workers and a redis-server", len(left))
			}
			if err := cmd.Process.Signal(how); err != nil {
				t.Fatal(err)
			}
			for lines.Scan() { // until the program has ended
			}
			if err := cmd.Wait(); err == nil {
				t.Error("it says that all is well")
			}
			deadline := time.Now().Add(30 * time.Second)
			for slices.ContainsFunc(left, func(pid int) bool { return !gone(pid) }) {
				if time.Now().After(deadline) {
					for _, pid := range left {
						_ = syscall.Kill(pid, syscall.SIGKILL) // it may be gone
					}
					t.Fatalf("of %v some are running", left)
				}
				time.Sleep(5 * time.Millisecond)
			}
			files, err := os.ReadDir(dir)
			if err != nil || len(files) > 0 && how != syscall.SIGKILL {
				t.Errorf("it leaves %v behind, %v", files, err)
			}
		})
	}
}
