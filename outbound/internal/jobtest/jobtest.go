// Package jobtest has what the tests of the adapters for job systems share.
package jobtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

const workerEnv = "DRIPFEED_JOBTEST_WORKER"

// Worker runs work in a process of [Start], and ends the process. In another process it does
// nothing. TestMain calls it first.
func Worker[T any](work func(order T) error) {
	text := os.Getenv(workerEnv)
	if text == "" {
		return
	}
	var order T
	err := json.Unmarshal([]byte(text), &order)
	if err == nil {
		err = work(order)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Wait waits until the process that has started this worker ends.
func Wait() { _, _ = io.Copy(io.Discard, os.Stdin) }

// Start starts the test's binary as a worker process with this order. It returns a function that
// kills the process, as the end of the test does. The worker must not print errors.
func Start(t testing.TB, order any) (kill func()) {
	t.Helper()
	text, err := json.Marshal(order)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(text))
	var printed bytes.Buffer
	cmd.Stderr = &printed
	if _, err := cmd.StdinPipe(); err != nil { // ends with this process
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is that the process was killed
		if printed.Len() > 0 {
			t.Errorf("the worker process printed\n%s", &printed)
		}
	})
	t.Cleanup(kill)
	return kill
}

// API is an API on a port, for worker processes.
type API struct {
	*outboundtest.API
	URL     string       // of a call
	Booking string       // the URL that a worker requests when a job runs without a ticket
	Booked  atomic.Int64 // requests of Booking
}

// StartAPI starts an API until the test ends.
func StartAPI(t testing.TB, api *outboundtest.API) *API {
	a := &API{API: api}
	mux := http.NewServeMux()
	mux.Handle("/", api)
	mux.HandleFunc("/booking", func(http.ResponseWriter, *http.Request) { a.Booked.Add(1) })
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	a.URL, a.Booking = server.URL, server.URL+"/booking"
	return a
}

// Check checks that the API has refused no call. Each of n jobs calls once, and those that a killed
// process had may call twice.
func (a *API) Check(t testing.TB, n, killed int) {
	t.Helper()
	if r := a.Report(); r.Refused != 0 || r.Arrivals < n || r.Arrivals > n+killed {
		t.Errorf("%d calls of %d jobs, of which a killed process had %d; %d calls refused", r.Arrivals, n, killed, r.Refused)
	}
}

// Get calls an API. Its error is the status unless that is 200.
func Get(ctx context.Context, c *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// Way is one way to pace jobs.
type Way struct {
	Name    string
	Measure func(t *testing.T) []float64 // returns a value for each column
}

// Must returns v. An error, which no test expects, ends the tests with a panic that says it.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// Measure measures the ways in turn, so many rounds, and logs a table of medians. It skips the test
// unless DRIPFEED_LONG is 1.
func Measure(t *testing.T, rounds int, columns string, ways []Way) {
	if os.Getenv("DRIPFEED_LONG") != "1" {
		t.Skip("it takes minutes: DRIPFEED_LONG=1")
	}
	all := make([][][]float64, len(ways)) // by way and column
	for range rounds {
		for i, way := range ways {
			t.Run(way.Name, func(t *testing.T) {
				values := way.Measure(t)
				t.Log(values)
				for column, value := range values {
					if column == len(all[i]) {
						all[i] = append(all[i], nil)
					}
					all[i][column] = append(all[i][column], value)
				}
			})
		}
	}
	t.Log("| | " + columns + " |")
	for i, way := range ways {
		row := "| " + way.Name
		for _, values := range all[i] {
			slices.Sort(values)
			row += fmt.Sprintf(" | %.2f", values[len(values)/2])
		}
		t.Log(row + " |")
	}
}

// Readme checks that each program in README.md stands in example_test.go, with any indents.
func Readme(t *testing.T) {
	read := func(file string) string {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	plain := func(text string) string { return strings.Join(strings.Fields(text), " ") }
	example := plain(read("example_test.go"))
	blocks := strings.Split(read("README.md"), "```go\n")[1:]
	if len(blocks) == 0 {
		t.Error("README.md has no program")
	}
	for _, block := range blocks {
		program, _, _ := strings.Cut(block, "```")
		if !strings.Contains(example, plain(program)) {
			t.Errorf("example_test.go does not have\n%s", program)
		}
	}
}

// Main is the TestMain of an example whose worker processes have a variable in their environment.
func Main(m *testing.M, worker string, main func()) {
	if os.Getenv(worker) != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Program is the run function of an example.
type Program func(ctx context.Context, args []string, out, errs io.Writer) (status int, err error)

// Output runs an example. Its output must match a pattern, and have at most 60 columns.
func Output(t *testing.T, run Program, args, pattern string) {
	t.Helper()
	var out bytes.Buffer
	status, err := run(t.Context(), strings.Fields(args), &out, io.Discard)
	if status != 0 || !regexp.MustCompile(pattern).Match(out.Bytes()) {
		t.Errorf("%s: status %d, %v\n%s", args, status, err, &out)
	}
	if wide := regexp.MustCompile(`(?m)^.{61,}`).Find(out.Bytes()); wide != nil {
		t.Errorf("more than 60 columns: %s", wide)
	}
}

// Arguments checks that an example refuses wrong arguments with the status 2 and no word of their
// "secret", and that its help has a text.
func Arguments(t *testing.T, run Program, help string, wrong ...string) {
	for _, line := range wrong {
		status, err := run(t.Context(), strings.Fields(line), io.Discard, io.Discard)
		if status != 2 || err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: status %d, %v", line, status, err)
		}
	}
	var out bytes.Buffer
	if status, err := run(t.Context(), []string{"-h"}, io.Discard, &out); status != 0 || err != nil || !strings.Contains(out.String(), help) {
		t.Errorf("-h: status %d, %v: %s", status, err, &out)
	}
}
