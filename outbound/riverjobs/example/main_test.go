package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

func TestMain(m *testing.M) {
	if text := os.Getenv(workerEnv); text != "" {
		if work(text, os.Stdin) != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The workers complete all jobs, and the program prints at most 60 columns.
func TestFleet_SharesItsQuota(t *testing.T) {
	if err := pgserver.Installed(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	var out bytes.Buffer
	status, err := run(t.Context(), []string{"-processes", "2", "-jobs", "40", "-others", "5", "-at-insert"}, &out, io.Discard)
	if status != 0 {
		t.Fatalf("status %d, %v\n%s", status, err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 61 {
			t.Errorf("more than 60 columns: %s", line)
		}
	}
	// All are done, none is in a worker or waits, and none has failed. How many calls the API refuses
	// depends on the machine.
	if !regexp.MustCompile(` s +40 +0 +0 +[0-9]+ +0 +5 .*\n\n[0-9.]+ runs a job`).Match(out.Bytes()) {
		t.Errorf("%s", &out)
	}
}

// Wrong arguments are errors, which show no password.
func TestArguments_WrongOnesAreErrors(t *testing.T) {
	jobtest.Arguments(t, run, "go run -C outbound/riverjobs ./example",
		"more", "-processes 0", "-rate NaN", "-jobs -1", "-unknown", "-db postgres://127.0.0.1:1/?sslmode=disable&password=secret")
}
