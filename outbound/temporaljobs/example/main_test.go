package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/internal/jobtest"
)

func TestMain(m *testing.M) { jobtest.Main(m, workerEnv, main) }

// The processes run all activities, whether the workflow or Redis keeps the tickets.
func TestFleet_RunsAllActivities(t *testing.T) {
	address := os.Getenv("DRIPFEED_TEMPORAL_ADDRESS")
	if address == "" {
		t.Skip("DRIPFEED_TEMPORAL_ADDRESS names no Temporal server")
	}
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip(err)
	}
	for _, await := range []string{"-await=true", "-await=false"} {
		jobtest.Output(t, run, "-server "+address+" -workers 2 -activities 30 -rate 20 "+await, "30 activities, 20 calls a second")
	}
}

// Wrong arguments are errors that do not show a password.
func TestArguments_WrongOnesAreErrors(t *testing.T) {
	jobtest.Arguments(t, run, "-server", "more", "-workers 0", "-rate NaN", "-activities -1", "-unknown", "-server 127.0.0.1:1 -redis 127.0.0.1/secret")
}

// If no server is given and none can be started, the error names the option.
func TestServer_MissingOneIsAnError(t *testing.T) {
	t.Setenv("PATH", "")
	for _, c := range []struct{ args, want string }{{"-server 127.0.0.1:1", "-redis"}, {"", "-server"}} {
		if status, err := run(t.Context(), strings.Fields(c.args), io.Discard, io.Discard); status != 2 || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: status %d, %v", c.args, status, err)
		}
	}
}
