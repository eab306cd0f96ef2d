package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/cli"
	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// threeAPIs returns the demo over three strict APIs without a network. If queued is not nil, the
// queue calls it.
func threeAPIs(queued http.RoundTripper) *demo {
	base := [3]http.RoundTripper{strictAPI(rate), strictAPI(rate), queued}
	if queued == nil {
		base[2] = strictAPI(rate)
	}
	const url = "http://api.example.com/"
	return threeWays(rate, [3]string{url, url, url}, base)
}

// atThree is the run of a demo that begins in the test's time.
func atThree(queued http.RoundTripper) cli.Run {
	return func(ctx context.Context, out io.Writer) error { return threeAPIs(queued).run(ctx, out) }
}

// The API refuses calls of the plain client, the bucket refuses in the process, and the queue lets
// each call wait. Without a terminal there is a line of progress in a second for each way that has
// changed.
func TestProgram_PlainIsRefusedAndQueueWaits(t *testing.T) {
	api := strictAPI(rate)
	out, _ := exampletest.Output(t, atThree(api),
		`plain client     40        20      20    0     1\.95   98 %\n`,
		`bucket           40        14       0   26     1\.95   68 %\n`,
		`queue            40        40       0    0     3\.94   99 %\n`,
		`Ideal: \(40 - 1\) / 9\.901 = 3\.94 s\.\nIt took 3\.94 s, 1\.000 times that\.`)
	if r := api.Report(); r.Arrivals != 40 || r.Refused != 0 {
		t.Errorf("the queue's API reports %+v", r)
	}
	// One way takes 4 s, the two others 2.
	if n := strings.Count(out, " s  "); n < 7 || n > 9 {
		t.Errorf("it has %d lines of progress, want about 8:\n%s", n, out)
	}
}

// The table remarks that a stricter API has refused calls of the queue.
func TestProgram_RemarksARefusalOfTheQueue(t *testing.T) {
	exampletest.Output(t, atThree(strictAPI(rate-1)), `\nThe API has refused \d+ calls of the queue`)
}

// An interrupt ends the program with the table.
func TestProgram_InterruptEndsItWithTheTable(t *testing.T) {
	out := exampletest.Interrupt(t, time.Second+time.Millisecond, atThree(nil))
	if want := "queue            21        10 "; !strings.Contains(out, want) {
		t.Errorf("%q is missing:\n%s", want, out)
	}
}

// The limit is so wide that the API refuses nothing, however slow the machine is.
func TestProgram_RunsOverRealHTTP(t *testing.T) {
	var out bytes.Buffer
	if err := local(t.Context(), 200, &out); err != nil || !regexp.MustCompile(`(?m)^queue +40 +40 +0 +0 `).Match(out.Bytes()) {
		t.Errorf("not all calls of the queue are answered: %v\n%s", err, &out)
	}
}

// A server of -api is called by a bucket and by a queue, and not by a plain client.
func TestServer_OfTheUserIsCalledInBothWays(t *testing.T) {
	api := strictAPI(500)
	server := httptest.NewServer(api)
	defer server.Close()
	if out := exampletest.Exec(t, &example, "-api "+server.URL+" -rate 500"); strings.Contains(out, "plain client") {
		t.Error(out)
	}
	if n := api.Report().Arrivals; n <= requests || n > 2*requests {
		t.Errorf("%d calls have arrived, want all of the queue and some of the bucket", n)
	}
}

// unreachable is a network without a route.
type unreachable struct{}

func (unreachable) RoundTrip(*http.Request) (*http.Response, error) {
	return nil, errors.New("no route")
}

// The error says why no call is answered, and so does the table.
func TestServer_UnreachableIsReported(t *testing.T) {
	exampletest.Output(t, func(ctx context.Context, out io.Writer) error {
		err := atThree(unreachable{})(ctx, out)
		if err == nil || err.Error() != "40 calls of the queue have failed, the first with: no route" {
			t.Errorf("the error is %v", err)
		}
		return nil
	}, "40 calls failed, the first with: no route")
}

// Wrong arguments are refused, and no password is shown.
func TestArguments_AreChecked(t *testing.T) {
	exampletest.RefusesArguments(t, &example, map[string]string{
		"-rate 5":                                       "-rate needs -api",
		"-api localhost:8080 -rate 5":                   "-api needs a URL",
		"-api ftp://example.com/ -rate 5":               "-api needs a URL",
		"-api http:///path -rate 5":                     "-api needs a URL",
		"-api http://user:secret@exa;mple.com/ -rate 5": "-api needs a URL",
		"-api http://example.com/":                      "-api needs -rate",
		"-api http://example.com/ -rate 0":              "want a number",
	})
}
