package main

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

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
	// All are done, none is in a worker or away, and none has failed; how many calls the API refuses is
	// up to the machine.
	if !regexp.MustCompile(` s +40 +0 +0 +[0-9]+ +0 +5 .*\n\n[0-9.]+ runs a job`).Match(out.Bytes()) {
		t.Errorf("%s", &out)
	}
}

func TestArguments_WrongOnesAreErrors(t *testing.T) {
	for _, args := range [][]string{{"more"}, {"-processes", "0"}, {"-rate", "NaN"}, {"-jobs", "-1"}, {"-unknown"}, {"-db", "postgres://127.0.0.1:1/?sslmode=disable&password=secret"}} {
		status, err := run(t.Context(), args, io.Discard, io.Discard)
		if status != 2 || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: status %d, %v", args, status, err)
		}
	}
	var help bytes.Buffer
	if status, err := run(t.Context(), []string{"-h"}, io.Discard, &help); status != 0 || err != nil || !strings.Contains(help.String(), "go run -C outbound/riverjobs ./example") {
		t.Errorf("-h: status %d, %v: %s", status, err, &help)
	}
}
