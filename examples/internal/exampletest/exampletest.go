// Package exampletest runs the examples in their tests.
package exampletest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
)

// Begin is the begin of virtual time. Some APIs send times in seconds since 1970, and profiles take
// a small number for a duration.
var Begin = time.Date(2026, time.March, 24, 8, 0, 0, 0, time.UTC)

// InVirtualTime runs a test in virtual time. After the test the queues' last requests have a minute
// to end.
func InVirtualTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(Begin))
		defer time.Sleep(time.Minute)
		test(t)
	})
}

// Output runs a program in virtual time, and returns what it prints and how long it takes. Each
// pattern must match the output.
func Output(t *testing.T, run cli.Run, patterns ...string) (text string, took time.Duration) {
	t.Helper()
	var out bytes.Buffer
	InVirtualTime(t, func(t *testing.T) {
		if err := run(t.Context(), &out); err != nil {
			t.Error(err)
		}
		took = time.Since(Begin)
	})
	for _, p := range patterns {
		if !regexp.MustCompile(p).Match(out.Bytes()) {
			t.Errorf("nothing matches %q:\n%s", p, &out)
		}
	}
	return out.String(), took
}

// Interrupt interrupts a program after a while. The program must end immediately, and its error
// must say why. Interrupt returns what the program prints.
func Interrupt(t *testing.T, after time.Duration, run cli.Run) (text string) {
	t.Helper()
	var out bytes.Buffer
	InVirtualTime(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context()) // a deadline would make queues refuse early
		if after == 0 {                                // not soon, but before it begins
			cancel()
		}
		time.AfterFunc(after, cancel)
		if err := run(ctx, &out); !errors.Is(err, context.Canceled) && (err == nil || err.Error() != "interrupted") {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(Begin); took != after {
			t.Errorf("it ended after %v", took)
		}
	})
	return out.String()
}

// Must returns v. An error, which no test expects, ends the tests with a panic that says it.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// NoError fails the test if there is an error.
func NoError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// Arguments returns the arguments of a line. A ; is a space within an argument.
func Arguments(line string) []string {
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], ";", " ")
	}
	return args
}

// Exec runs a program with a line of [Arguments], and returns what it prints. The status must be 0,
// and only a program without other output may print errors.
func Exec(t *testing.T, e *cli.Example, line string) (text string) {
	t.Helper()
	var out, stderr bytes.Buffer
	if status := e.Exec(t.Context(), Arguments(line), &out, &stderr); status != 0 || out.Len() > 0 && stderr.Len() > 0 {
		t.Fatalf("%s: status %d, %s\n%s", line, status, &stderr, &out)
	}
	return out.String() + stderr.String()
}

// RefusesArguments checks that a program ends with the status 2 and a text for each line of
// [Arguments]. No text may show a "secret".
func RefusesArguments(t *testing.T, e *cli.Example, says map[string]string) {
	t.Helper()
	for line, want := range says {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		var out, stderr bytes.Buffer
		status := e.Exec(ctx, Arguments(line), &out, &stderr)
		cancel()
		if text := stderr.String(); status != 2 || !strings.Contains(text, want) || strings.Contains(text, "secret") {
			t.Errorf("%s: status %d, want 2 and %q:\n%s", line, status, want, text)
		}
		if out.Len() > 0 {
			t.Errorf("%s: printed %q", line, &out)
		}
	}
}

// KeepsSecret runs a program over an API that answers 401. The program must send one request, to a
// URL and with a header, and must not show the "secret".
func KeepsSecret(t *testing.T, url, header, value string, run func(ctx context.Context, api http.RoundTripper, out io.Writer) error) {
	t.Helper()
	var out bytes.Buffer
	var urls, values []string
	err := run(t.Context(), roundTripper(func(req *http.Request) (*http.Response, error) {
		urls, values = append(urls, req.URL.String()), append(values, req.Header.Get(header))
		return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: http.NoBody, Request: req}, nil
	}), &out)
	if err == nil || strings.Contains(err.Error()+out.String(), "secret") {
		t.Errorf("%v\n%s", err, &out)
	}
	if len(urls) != 1 || urls[0] != url || values[0] != value {
		t.Errorf("the API has received %q with %q", urls, values)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }
