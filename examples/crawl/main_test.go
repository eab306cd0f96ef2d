package main

import (
	"bytes"
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestProgram_HostsAreAsFastAsAllowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		var out bytes.Buffer
		web := newHosts()
		if err := run(t.Context(), web, &out); err != nil {
			t.Fatal(err)
		}
		t.Logf("\n%s", &out)
		if r := web.Report(); r.Admitted != hosts*pages || r.Refused > 0 {
			t.Errorf("the hosts have admitted %d and refused %d, want %d and none", r.Admitted, r.Refused, hosts*pages)
		}
		// The last host has its first page after 0.7 s, and its fifth 4 s later.
		if took := time.Since(begin); took > 5500*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

// stubborn is a web in which more hosts than there are places, those with two digits below
// 40, refuse all calls and ask for this pause.
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

func TestHost_LongPauseStopsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(6*time.Second, cancel)
		var out bytes.Buffer
		err := run(ctx, stubborn{newHosts(), "3600"}, &out)
		if err == nil || err.Error() != "interrupted" {
			t.Errorf("the error is %v", err)
		}
		if want := "\n850 pages in "; !strings.Contains(out.String(), want) {
			t.Errorf("not all other hosts' pages were fetched:\n%s", &out)
		}
	})
}

func TestHost_ThatKeepsRefusingIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		var out bytes.Buffer
		err := run(ctx, stubborn{newHosts(), "60"}, &out)
		if err == nil || strings.Count(err.Error(), "has refused 5 calls") != 30 {
			t.Errorf("the error is %v", err)
		}
		if !strings.Contains(out.String(), "\n850 pages in ") || !strings.Contains(out.String(), "; 150 were refused.") {
			t.Errorf("not all other hosts' pages were fetched:\n%s", &out)
		}
	})
}

func TestInterrupt_EndsTheProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := run(ctx, newHosts(), new(bytes.Buffer)); err == nil || err.Error() != "interrupted" {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
	})
}
