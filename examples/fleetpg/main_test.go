package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
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

func TestAFleetSharesItsQuota(t *testing.T) {
	if _, err := programs(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
	var out bytes.Buffer
	status, err := run(t.Context(), []string{"-workers", "3", "-seconds", "2", "-rate", "20", "-kill", "1", "-strict"}, &out, io.Discard)
	if status != 0 {
		t.Fatalf("status %d, %v\n%s", status, err, &out)
	}
	for line := range strings.Lines(out.String()) {
		if len(line) > 61 {
			t.Errorf("more than 60 columns: %s", line)
		}
	}
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"more"}, {"-workers", "0"}, {"-rate", "NaN"}, {"-seconds", "-1"}, {"-unknown"}, {"-db", "postgres://127.0.0.1:1/?sslmode=disable&password=secret"}} {
		status, err := run(t.Context(), args, io.Discard, io.Discard)
		if status != 2 || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: status %d, %v", args, status, err)
		}
	}
	var help bytes.Buffer
	if status, err := run(t.Context(), []string{"-h"}, io.Discard, &help); status != 0 || err != nil || !strings.Contains(help.String(), "go run -C examples/fleetpg .") {
		t.Errorf("-h: status %d, %v: %s", status, err, &help)
	}
}
