package main

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

	"github.com/dripfeed/dripfeed/outbound/outboundtest"
)

func TestRefusal_HoldsAllWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC))) // resets are seconds since 1970
		begin := time.Now()
		var out bytes.Buffer
		task := demo(newAPI())
		go task.disturb(t.Context())
		if err := task.run(t.Context(), &out); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second) // the queues' last trips
		t.Logf("\n%s", &out)
		if task.refused.Load() == 0 || task.refused.Load() > 4 {
			t.Errorf("%d calls were refused, want one for each worker at most", task.refused.Load())
		}
		if took := time.Since(begin); took < 5*time.Second || took > 12*time.Second {
			t.Errorf("it took %v", took)
		}
		if !regexp.MustCompile(`[01]\.\d s  worker \d hears that core has to wait 1s`).Match(out.Bytes()) {
			t.Error("nobody has heard of the limit on points")
		}
	})
}

func TestProgram_UndisturbedHasNoRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)))
		var out bytes.Buffer
		task := demo(newAPI())
		if err := task.run(t.Context(), &out); err != nil || task.refused.Load() > 0 {
			t.Errorf("%d refused, %v\n%s", task.refused.Load(), err, &out)
		}
		time.Sleep(time.Second)
	})
}

// theReal is the task for the real API, over an API that has GitHub's own rules.
func theReal(calls, searches int32) *task {
	task := real("secret")
	api := outboundtest.GitHub()
	api.Latency = 100 * time.Millisecond
	task.base, task.url, task.calls, task.searches = api, issues, calls, searches
	return task
}

// With outbound.PerHour(5_000) for the calls they took 215 s.
func TestProgram_300CallsKeepThePointsOfAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)))
		begin := time.Now()
		task := theReal(300, 0)
		if err := task.run(t.Context(), io.Discard); err != nil || task.refused.Load() > 0 || task.made.Load() != 300 {
			t.Errorf("%d made, %d refused, %v", task.made.Load(), task.refused.Load(), err)
		}
		took := time.Since(begin)
		t.Log(took)
		if took > 25*time.Second {
			t.Errorf("it took %v, want 25 s at most", took)
		}
		time.Sleep(time.Second)
	})
}

// mute takes from the answers what they tell of the quota.
type mute struct{ http.RoundTripper }

func (m mute) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := m.RoundTripper.RoundTrip(req)
	if err == nil {
		for _, name := range []string{"Limit", "Remaining", "Used", "Reset"} {
			resp.Header.Del("X-RateLimit-" + name)
		}
	}
	return resp, err
}

// After 5 000 calls in six minutes the next one waits until the hour is over, and 10 100 take
// two hours: all of the quota is used, whether or not the answers tell of it. Those that have gone
// in the same part of the window, a 64th, as the last before a hold come back late by the hold.
func TestProgram_UsesAllOfAnHour(t *testing.T) {
	for name, silent := range map[string]bool{"told": false, "untold": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)))
				begin := time.Now()
				task := theReal(10_100, 0)
				if silent {
					task.base = mute{task.base}
				}
				const part = 860 * 60 / 64 // in a 64th of an hour
				for i, want := range []int{5_000, 10_000} {
					least := want
					if i > 0 && !silent {
						least -= part
					}
					time.AfterFunc(time.Duration(i)*time.Hour+15*time.Minute, func() {
						if made := int(task.made.Load()); made < least || made > want+4 { // each worker has one in hand
							t.Errorf("%d calls made after %v, want %d", made, time.Since(begin), want)
						}
					})
				}
				if err := task.run(t.Context(), io.Discard); err != nil || task.refused.Load() > 0 {
					t.Errorf("%d refused, %v", task.refused.Load(), err)
				}
				if took := time.Since(begin); took < 2*time.Hour || took > 2*time.Hour+150*time.Second { // a 64th of each window, and 100 calls
					t.Errorf("it took %v", took)
				}
				time.Sleep(time.Second)
			})
		})
	}
}

func TestSearch_DelaysNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(time.Date(2026, 9, 1, 0, 0, 0, 0, time.UTC)))
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		task := theReal(300, 40) // GitHub allows 30 searches in a minute
		if err := task.run(ctx, io.Discard); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("40 searches: %v", err)
		}
		if task.calls >= 0 || task.searches != 9 || task.refused.Load() > 0 {
			t.Errorf("%d calls and %d searches are left, want 0 and 9, and one that has begun; %d refused", task.calls, task.searches, task.refused.Load())
		}
		time.Sleep(time.Second)
	})
}

func TestInterrupt_EndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := demo(newAPI()).run(ctx, io.Discard); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
		time.Sleep(time.Second)
	})
}

type seen struct{ urls, tokens []string }

func (s *seen) RoundTrip(req *http.Request) (*http.Response, error) {
	s.urls, s.tokens = append(s.urls, req.URL.String()), append(s.tokens, req.Header.Get("Authorization"))
	return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

func TestToken_IsSentAndNeverPrinted(t *testing.T) {
	var out bytes.Buffer
	task, api := real("secret"), new(seen)
	task.base = api
	task.calls = 1
	err := task.run(t.Context(), &out)
	if err == nil || strings.Contains(err.Error()+out.String(), "secret") {
		t.Errorf("%v\n%s", err, &out)
	}
	if len(api.urls) != 1 || api.urls[0] != "https://api.github.com/rate_limit" || api.tokens[0] != "Bearer secret" {
		t.Errorf("seen %v", api)
	}
}
