package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m, workerEnv, main) }

// The example runs all its tasks.
func TestFleet_RunsAllTasks(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("DRIPFEED_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	jobtest.Output(t, run, "-workers 2 -tasks 20 -book", `\n    20         0         0 `) // done, and nothing left in asynq or in work
}

// A wrong argument is an error.
func TestArguments_WrongOnesAreErrors(t *testing.T) {
	jobtest.Arguments(t, run, "go run -C outbound/asynqjobs ./example", "more", "-workers 0", "-tasks -1", "-unknown", "-redis 127.0.0.1/secret")
}
