package main

import (
	"os"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
	"github.com/dripfeed/dripfeed/outbound/riverjobs/internal/pgserver"
)

func TestMain(m *testing.M) { jobtest.Main(m, workerEnv, main) }

// The workers complete all jobs, and the program prints at most 60 columns.
func TestFleet_SharesItsQuota(t *testing.T) {
	if err := pgserver.Installed(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	// All are done, none is in a worker or waits, and none has failed. How many calls the API refuses
	// depends on the machine.
	jobtest.Output(t, run, "-processes 2 -jobs 40 -others 5 -at-insert", ` s +40 +0 +0 +[0-9]+ +0 +5 .*\n\n[0-9.]+ runs a job`)
}

// Wrong arguments are errors, which show no password.
func TestArguments_WrongOnesAreErrors(t *testing.T) {
	jobtest.Arguments(t, run, "go run -C outbound/riverjobs ./example",
		"more", "-processes 0", "-rate NaN", "-jobs -1", "-unknown", "-db postgres://127.0.0.1:1/?sslmode=disable&password=secret")
}
