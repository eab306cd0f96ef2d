package main

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

// row returns the numbers of the line that begins with a name.
func row(t *testing.T, name, text string) []float64 {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + name + ` +(.*)$`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no line of %q in\n%s", name, text)
	}
	var numbers []float64
	for _, field := range strings.Fields(m[1]) {
		n, err := strconv.ParseFloat(field, 64)
		if err != nil {
			t.Fatal(err)
		}
		numbers = append(numbers, n)
	}
	return numbers
}

func TestPacedRetriesSeeAllCallsThroughWithFewRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, stderr bytes.Buffer
		if status := run(t.Context(), nil, &out, &stderr); status != 0 {
			t.Errorf("status %d, %s", status, &stderr)
		}
		alone, ours := row(t, "plain client", out.String()), row(t, "queue and retry", out.String())
		if ours[0] != 150 || ours[1] != 0 {
			t.Errorf("%v answered and %v lost, want 150 and 0", ours[0], ours[1])
		}
		if ours[3] > 0 || alone[3] < 50 {
			t.Errorf("%v refused, and %v alone, want 0 and many", ours[3], alone[3])
		}
		if ours[5] > 25 {
			t.Errorf("it took %v s, want about 18", ours[5])
		}
		t.Logf("\n%s", &out)
	})
}

func TestAServerOfOnesOwnIsCalledByGet(t *testing.T) {
	api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(500, time.Second)}}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet {
			t.Errorf("a %s came", req.Method)
		}
		api.ServeHTTP(w, req)
	}))
	defer server.Close()
	var out, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-url", server.URL, "-rate", "500", "-calls", "20"}, &out, &stderr); status != 0 {
		t.Errorf("status %d, %s", status, &stderr)
	}
	if r := api.Report(); r.Admitted != 20 {
		t.Errorf("the API reports %+v, want 20 admitted", r)
	}
	if !strings.Contains(out.String(), "queue and retry       20    0 ") {
		t.Errorf("not all were answered:\n%s", &out)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestWhatIsLostIsReported(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var out, stderr bytes.Buffer
	if status := run(t.Context(), []string{"-url", server.URL, "-rate", "500", "-calls", "3"}, &out, &stderr); status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	if !strings.Contains(out.String(), "queue and retry has lost 3, the first with:\nstatus 404\n") || !strings.Contains(stderr.String(), "not one call was answered") {
		t.Errorf("it says\n%s%s", &out, &stderr)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
}

func TestTheURLIsNotShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const secret = "ftp://user:secret@api.example.com/?token=canary"
		j := &job{name: "queue and retry", method: http.MethodGet, url: secret, client: paced(nil, 10, nil), calls: 1, workers: 1}
		var out bytes.Buffer
		err := together(t.Context(), []*job{j}, &out)
		if err == nil || !strings.Contains(out.String(), "unsupported protocol scheme") {
			t.Errorf("%v\n%s", err, &out)
		}
		for _, canary := range []string{"secret", "canary"} {
			if strings.Contains(out.String(), canary) {
				t.Errorf("%s is shown:\n%s", canary, &out)
			}
		}
	})
}

func TestInterruptEndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(4*time.Second, cancel)
		start := time.Now()
		var out, stderr bytes.Buffer
		if status := run(ctx, nil, &out, &stderr); status != 1 || !strings.Contains(stderr.String(), "interrupted") {
			t.Errorf("status %d, %s", status, &stderr)
		}
		if took := time.Since(start); took != 4*time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestArgumentsAreChecked(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"-h"}, 0, "-rate N"},
		{[]string{"more"}, 2, `"more" is one argument too many`},
		{[]string{"-nonsense"}, 2, "not defined"},
		{[]string{"-url", "localhost:8080"}, 2, "-url needs a URL"},
		{[]string{"-url", "http:///path"}, 2, "-url needs a URL"},
		{[]string{"-url", "http://user:secret@exa mple.com/"}, 2, "-url needs a URL"},
		{[]string{"-rate", "0"}, 2, "-rate needs a number"},
		{[]string{"-rate", "NaN"}, 2, "-rate needs a number"},
		{[]string{"-rate", "Inf"}, 2, "-rate needs a number"},
		{[]string{"-calls", "0"}, 2, "-calls and -workers need"},
		{[]string{"-workers", "-1"}, 2, "-calls and -workers need"},
	} {
		var out, stderr bytes.Buffer
		status := run(t.Context(), c.args, &out, &stderr)
		if status != c.status || !strings.Contains(stderr.String(), c.says) {
			t.Errorf("%q: status %d, want %d and %q:\n%s", c.args, status, c.status, c.says, &stderr)
		}
		if strings.Contains(stderr.String(), "secret") {
			t.Errorf("%q: the password is shown", c.args)
		}
	}
}
