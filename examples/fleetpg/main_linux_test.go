package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// A program that is terminated, or has lost a worker, ends with an error, and leaves nothing behind.
func TestProgram_LeavesNothing(t *testing.T) {
	needPostgres(t)
	for want, harm := range map[string]func(t *testing.T, program *os.Process, children []int){
		"interrupted": func(t *testing.T, program *os.Process, _ []int) {
			exampletest.NoError(t, program.Signal(syscall.SIGTERM))
		},
		"worker 0 has ended": func(t *testing.T, _ *os.Process, children []int) {
			for _, pid := range children {
				if name, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); name == os.Args[0] {
					exampletest.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			out, status := exampletest.End(t, mainEnv, []string{"-workers", "1", "-seconds", "60"}, " s  shared", func(program *os.Process, children []int) {
				if len(children) != 2 {
					t.Errorf("it has %d children, want a worker and a server", len(children))
				}
				harm(t, program, children)
			})
			if status != 1 || !strings.Contains(out, want) {
				t.Errorf("status %d, want 1 and %q:\n%s", status, want, out)
			}
		})
	}
}
