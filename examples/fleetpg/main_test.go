package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/examples/internal/workers"
)

// mainEnv makes the test's binary the program, with the arguments that it gets.
const mainEnv = "DRIPFEED_FLEETPG_MAIN"

func TestMain(m *testing.M) {
	workers.Work(bucket)
	if os.Getenv(mainEnv) != "" {
		main()
	}
	os.Exit(m.Run())
}

// needPostgres skips the test without a PostgreSQL server, unless it is required.
func needPostgres(t *testing.T) {
	t.Helper()
	if _, err := programs(); err != nil && os.Getenv("DRIPFEED_REQUIRE_POSTGRES") == "" {
		t.Skip(err)
	}
}

// Workers share the quota of a server of -db, and the API refuses no call, though a worker is
// killed.
func TestProgram_WorkersShareTheQuota(t *testing.T) {
	needPostgres(t)
	dir, err := os.MkdirTemp("", "fleetpg") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	url, end, err := start(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for i := range 4 { // a busy machine may miss it for a while
		out := exampletest.Exec(t, &example, "-db "+url+" -workers 3 -seconds 4.4 -rate 2 -kill 1")
		if regexp.MustCompile(`(?m)^.{61}`).MatchString(out) {
			t.Errorf("more than 60 columns:\n%s", out)
		}
		if regexp.MustCompile(`(?m)^shared +([5-9]\d|10\d)\.\d +\d+ +0 `).MatchString(out) {
			return
		}
		if i == 3 {
			t.Errorf("the quota is not used, or the API has refused a call:\n%s", out)
		}
	}
}

// Wrong arguments are refused, and no password is shown. With -h the program says how to start it.
func TestArguments_AreChecked(t *testing.T) {
	exampletest.RefusesArguments(t, &example, map[string]string{
		"more":        "one argument too many",
		"-seconds -1": "want a number",
		"-db postgres://127.0.0.1:1/?sslmode=disable&password=secret": "-db: ",
		"-db no:secret@url": "-db: ",
	})
	if help := exampletest.Exec(t, &example, "-h"); !strings.Contains(help, "go run -C examples/fleetpg .") {
		t.Errorf("-h: %s", help)
	}
}
