package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
)

// The hosts admit every call, and 200 pages come per second.
func TestProgram_HostsAreAsFastAsAllowed(t *testing.T) {
	web := newHosts()
	// The last host has its first page after 0.7 s, and its fifth 4 s later.
	exampletest.Output(t, func(ctx context.Context, out io.Writer) error { return run(ctx, web, out) },
		`\n1000 pages in (4\.\d|5\.[0-5]) s, .*; 0 were refused\.`)
	if r := web.Report(); r.Admitted != hosts*pages || r.Refused > 0 {
		t.Errorf("the hosts have admitted %d and refused %d, want %d and none", r.Admitted, r.Refused, hosts*pages)
	}
}

// stubborn is a web in which 30 hosts, more than there are slots, refuse all calls: host10 to
// host39.
type stubborn struct {
	http.RoundTripper
	retryAfter string // in seconds
}

func (s stubborn) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := s.RoundTripper.RoundTrip(req)
	if err == nil && len(req.URL.Host) == len("host10.example") && req.URL.Host < "host4" {
		resp.StatusCode = http.StatusTooManyRequests
		resp.Header.Set("Retry-After", s.retryAfter)
	}
	return resp, err
}

// All pages of the other hosts are fetched while hosts ask for a pause of an hour. Later the
// program gives up the hosts that continue to refuse.
func TestHost_RefusingOnesStopNoOther(t *testing.T) {
	out := exampletest.Interrupt(t, 6*time.Second, func(ctx context.Context, out io.Writer) error {
		return run(ctx, stubborn{newHosts(), "3600"}, out)
	})
	if !strings.Contains(out, "\n850 pages in ") {
		t.Error(out)
	}
	exampletest.Output(t, func(ctx context.Context, out io.Writer) error {
		err := run(ctx, stubborn{newHosts(), "60"}, out)
		if err == nil || strings.Count(err.Error(), "has refused 5 calls") != 30 {
			t.Errorf("the error is %v", err)
		}
		return nil
	}, `\n850 pages in .*; 150 were refused\.`)
}

// An interrupt ends the program.
func TestProgram_InterruptEndsIt(t *testing.T) {
	exampletest.Interrupt(t, time.Second, func(ctx context.Context, out io.Writer) error { return run(ctx, newHosts(), out) })
}
