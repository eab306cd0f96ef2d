package main

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// A program that is ended leaves nothing running, and prints its table unless it is killed.
func TestProgram_LeavesNothingRunning(t *testing.T) {
	exampletest.Program(t, "REDIS", "redis-server")
	for how, want := range map[syscall.Signal]int{syscall.SIGINT: 1, syscall.SIGTERM: 1, syscall.SIGKILL: -1} {
		t.Run(how.String(), func(t *testing.T) {
			args := []string{"-mode", "shared", "-workers", "2", "-seconds", "600"}
			out, status := exampletest.End(t, mainEnv, args, " s  shared", func(program *os.Process, children []int) {
				if len(children) != 3 {
					t.Errorf("it has %d children, want 2 workers and a redis-server", len(children))
				}
				exampletest.NoError(t, program.Signal(how))
			})
			shown := strings.Contains(out, "quota answered refused") && strings.Contains(out, "shared: interrupted")
			if status != want || shown != (want == 1) {
				t.Errorf("status %d, want %d:\n%s", status, want, out)
			}
		})
	}
}
