package main

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// threeAPIs returns the demo over three strict APIs without a network.
func threeAPIs(t *testing.T) (*demo, [3]*outboundtest.API) {
	t.Helper()
	var apis [3]*outboundtest.API
	var urls [3]string
	var base [3]http.RoundTripper
	for i := range apis {
		apis[i] = strictAPI(rate)
		urls[i] = "http://api.example.com/"
		base[i] = apis[i]
	}
	return threeWays(rate, urls, base), apis
}

func TestProgram_PlainIsRefusedAndQueueWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, apis := threeAPIs(t)
		var out bytes.Buffer
		if err := d.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		for i, want := range []struct {
			made, answered, refusedByAPI, refusedByUs int
			took                                      time.Duration
		}{
			{40, 20, 20, 0, 1950 * time.Millisecond},
			{40, 14, 0, 26, 1950 * time.Millisecond},
			{40, 40, 0, 0, 3939 * time.Millisecond},
		} {
			w := d.ways[i]
			if requests-w.count(unmade) != want.made || w.count(answered) != want.answered || w.count(refusedByAPI) != want.refusedByAPI ||
				w.count(refusedByUs) != want.refusedByUs || w.took().Round(time.Millisecond) != want.took {
				t.Errorf("%s: %q in %v, want %+v", w.name, w.line(), w.took(), want)
			}
		}
		if r := apis[2].Report(); r.Arrivals != 40 || r.Refused != 0 {
			t.Errorf("the queue's API reports %+v", r)
		}
		for _, line := range []string{
			"plain client     40        20      20    0     1.95   98 %",
			"bucket           40        14       0   26     1.95   68 %",
			"queue            40        40       0    0     3.94   99 %",
			"Ideal: (40 - 1) / 9.901 = 3.94 s.\nIt took 3.94 s, 1.000 times that.",
		} {
			if !strings.Contains(out.String(), line) {
				t.Errorf("%q is missing", line)
			}
		}
		if t.Failed() {
			t.Logf("\n%s", &out)
		}
	})
}

func TestOutput_IsPlainWithoutATerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		var out bytes.Buffer
		if err := d.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		if i := strings.IndexFunc(out.String(), func(r rune) bool { return r < ' ' && r != '\n' }); i >= 0 {
			t.Errorf("it contains the control character %q", out.String()[i])
		}
		// One way takes 4 s, the two others 2.
		if n := strings.Count(out.String(), " s  "); n < 7 || n > 9 {
			t.Errorf("it has %d lines of progress, want about 8:\n%s", n, &out)
		}
	})
}

func TestOutput_HasAtMost60Columns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		var out bytes.Buffer
		if err := d.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if n := len(strings.Trim(line, "\r\n")); n > 60 {
				t.Fatalf("a line has %d columns: %s", n, line)
			}
		}
	})
}

func TestInterrupt_EndsTheProgramWithTheTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second+time.Millisecond)
		defer cancel()
		d, _ := threeAPIs(t)
		var out bytes.Buffer
		start := time.Now()
		err := d.run(ctx, &out)
		if err == nil || err.Error() != "interrupted" {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(start); took > time.Second+time.Millisecond {
			t.Errorf("it went on for %v", took)
		}
		if want := "queue            21        10 "; !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	})
}

func TestOutput_RemarksARefusalOfTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		stricter := strictAPI(rate - 1)
		d.queue().client.Transport = paced(stricter, nil).Transport
		var out bytes.Buffer
		if err := d.run(t.Context(), &out); err != nil {
			t.Errorf("the error is %v", err)
		}
		if !strings.Contains(out.String(), "\nThe API has refused ") {
			t.Errorf("there is no remark:\n%s", &out)
		}
	})
}

// The limit is so wide that the API refuses nothing, however slow the machine is.
func TestProgram_RunsOverRealHTTP(t *testing.T) {
	var out bytes.Buffer
	if err := local(t.Context(), 200, &out); err != nil {
		t.Fatalf("%v\n%s", err, &out)
	}
	if !regexp.MustCompile(`(?m)^queue +40 +40 +0 +0 `).Match(out.Bytes()) {
		t.Errorf("the queue's calls are not all answered:\n%s", &out)
	}
}

// This is main's way from the arguments to the exit status.
func TestServer_OfTheUserIsCalledInBothWays(t *testing.T) {
	api := strictAPI(500)
	server := newServer(t, api)
	var out, stderr bytes.Buffer
	status := example.Exec(t.Context(), []string{"-api", server, "-rate", "500"}, &out, &stderr)
	if status != 0 || stderr.Len() > 0 {
		t.Errorf("status %d, %s", status, &stderr)
	}
	if n := api.Report().Arrivals; n <= requests || n > 2*requests {
		t.Errorf("%d calls have arrived, want all of the queue and some of the bucket", n)
	}
	if strings.Contains(out.String(), "plain client") {
		t.Errorf("the plain client has called a server of others:\n%s", &out)
	}
}

func TestServer_UnreachableIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _ := threeAPIs(t)
		d.queue().client.Transport = paced(refuser{}, nil).Transport
		var out bytes.Buffer
		err := d.run(t.Context(), &out)
		if err == nil || err.Error() != "40 calls of the queue have failed, the first with: no route" {
			t.Errorf("the error is %v", err)
		}
		if !strings.Contains(out.String(), "40 calls failed, the first with: no route") {
			t.Errorf("it is not under the table:\n%s", &out)
		}
	})
}

func TestArguments_AreChecked(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-h"}, 0, "-rate N"},
		{[]string{"more"}, 2, `"more" is one argument too many`},
		{[]string{"-nonsense"}, 2, "not defined"},
		{[]string{"-rate", "5"}, 2, "-rate needs -api"},
		{[]string{"-api", "localhost:8080", "-rate", "5"}, 2, "-api needs a URL"},
		{[]string{"-api", "ftp://example.com/", "-rate", "5"}, 2, "-api needs a URL"},
		{[]string{"-api", "http:///path", "-rate", "5"}, 2, "-api needs a URL"},
		{[]string{"-api", "http://user:secret@exa mple.com/", "-rate", "5"}, 2, "-api needs a URL"},
		{[]string{"-api", "http://example.com/"}, 2, "-api needs -rate"},
		{[]string{"-api", "http://example.com/", "-rate", "-1"}, 2, "want a number"},
		{[]string{"-api", "http://example.com/", "-rate", "NaN"}, 2, "want a number"},
		{[]string{"-api", "http://example.com/", "-rate", "Inf"}, 2, "want a number"},
		{[]string{"-api", "http://example.com/", "-rate", "many"}, 2, "invalid value"},
	} {
		var out, stderr bytes.Buffer
		status := example.Exec(t.Context(), c.args, &out, &stderr)
		if status != c.status || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: status %d, want %d and %q:\n%s", c.args, status, c.status, c.says, &stderr)
		}
		if out.Len() > 0 {
			t.Errorf("%q: printed %q", c.args, &out)
		}
		if strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: the password is shown", c.args)
		}
	}
}

// newServer serves the API on a free port.
func newServer(t *testing.T, api http.Handler) (url string) {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return server.URL
}

// refuser is a network without a route.
type refuser struct{}

func (refuser) RoundTrip(*http.Request) (*http.Response, error) { return nil, errors.New("no route") }
