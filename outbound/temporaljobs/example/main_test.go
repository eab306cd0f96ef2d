package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
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

func TestFleet_SharesItsQuota(t *testing.T) {
	address := os.Getenv("DRIPFEED_TEMPORAL_ADDRESS")
	if address == "" {
		t.Skip("DRIPFEED_TEMPORAL_ADDRESS names no Temporal server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	for _, await := range []string{"-await=true", "-await=false"} {
		var out bytes.Buffer
		status, err := run(t.Context(), []string{"-server", address, "-workers", "2", "-activities", "30", "-rate", "20", await}, &out, io.Discard)
		if status != 0 || !strings.Contains(out.String(), "30 activities, 20 calls a second") {
			t.Errorf("%s: status %d, %v\n%s", await, status, err, &out)
		}
	}
}

func TestArguments_WrongOnesAreErrors(t *testing.T) {
	for _, args := range [][]string{{"more"}, {"-workers", "0"}, {"-rate", "NaN"}, {"-activities", "-1"}, {"-unknown"}, {"-server", "127.0.0.1:1", "-redis", "127.0.0.1/secret"}} {
		if status, err := run(t.Context(), args, io.Discard, io.Discard); status != 2 || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v: status %d, %v", args, status, err)
		}
	}
	var help bytes.Buffer
	if status, err := run(t.Context(), []string{"-h"}, io.Discard, &help); status != 0 || err != nil || !strings.Contains(help.String(), "-server") {
		t.Errorf("-h: status %d, %v: %s", status, err, &help)
	}
}

// Where there is no server, the program says what it lacks.
func TestServer_MissingOneIsAnError(t *testing.T) {
	t.Setenv("PATH", "")
	if _, err := exec.LookPath("temporal"); err == nil {
		t.Fatal("there is one")
	}
	if status, err := run(t.Context(), []string{"-server", "127.0.0.1:1"}, io.Discard, io.Discard); status != 2 || err == nil || !strings.Contains(err.Error(), "-redis") {
		t.Errorf("status %d, %v", status, err)
	}
	if status, err := run(t.Context(), nil, io.Discard, io.Discard); status != 2 || err == nil || !strings.Contains(err.Error(), "-server") {
		t.Errorf("status %d, %v", status, err)
	}
}
