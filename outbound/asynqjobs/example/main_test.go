package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if work(text, os.Stdin, os.Stdout) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The example runs all its tasks.
func TestFleet_RunsAllTasks(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("DRIPFEED_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	var out bytes.Buffer
	status, err := run(t.Context(), []string{"-workers", "2", "-tasks", "20", "-book"}, &out, io.Discard)
	if status != 0 || err != nil {
		t.Fatalf("status %d, %v\n%s", status, err, &out)
	}
	if !strings.Contains(out.String(), "\n    20         0         0 ") { // done, and nothing left in asynq or in work
		t.Errorf("\n%s", &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 61 {
			t.Errorf("more than 60 columns: %s", line)
		}
	}
}

// A wrong argument is an error.
func TestArguments_WrongOnesAreErrors(t *testing.T) {
	jobtest.Arguments(t, run, "go run -C outbound/asynqjobs ./example", "more", "-workers 0", "-tasks -1", "-unknown", "-redis 127.0.0.1/secret")
}
