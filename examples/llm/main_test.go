package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestProgram_UsesBothModelsFully(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		if err := run(t.Context(), newAPI(), &out); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		t.Logf("\n%s", &out)
		for _, name := range []string{"small", "large"} {
			row := regexp.MustCompile(name + ` +(\d+) +(\d+) +(\d+) +(\d+) % +(\d+)`).FindStringSubmatch(out.String())
			if row == nil {
				t.Fatalf("no row of %q", name)
			}
			refused, _ := strconv.Atoi(row[2])
			share, _ := strconv.Atoi(row[4])
			if refused > 2 || share < 92 || share > 100 {
				t.Errorf("%s: %d refused, %d %% of the rate", name, refused, share)
			}
			calls, _ := strconv.Atoi(row[1])
			if left, _ := strconv.Atoi(row[5]); left > requestsPerDay-calls || left < requestsPerDay-calls-20 { // each worker may have one in hand
				t.Errorf("%s: %d requests are left after %d", name, left, calls)
			}
		}
	})
}

// The minutes have room again, and the day has not until the first requests are a day old.
func TestProgram_KeepsTheQuotaOfADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newModel(nil, "small", limits(time.Minute))
		time.Sleep(5 * time.Hour) // no midnight
		begin := time.Now()
		for range requestsPerDay {
			p, err := m.limiter.Acquire(t.Context(), outbound.Cost{requests: 1, tokens: 10})
			if err != nil {
				t.Fatal(err)
			}
			p.Done()
		}
		if took := time.Since(begin); took < 99*time.Minute || took > 102*time.Minute {
			t.Errorf("%d requests went in %v, want 99 minutes and some", requestsPerDay, took)
		}
		time.Sleep(time.Hour)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := m.limiter.Acquire(ctx, outbound.Cost{requests: 1, tokens: 10})
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok || full.Limit != "requests per day" {
			t.Fatalf("%v, want a refusal by the requests of the day", err)
		}
		if at := time.Since(begin) + full.RetryAfter; at < 24*time.Hour || at > 24*time.Hour+23*time.Minute { // a 64th of the day
			t.Errorf("there is room at %v", at)
		}
		time.Sleep(time.Second)
	})
}

func TestInterrupt_EndsTheWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		if err := run(ctx, newAPI(), new(bytes.Buffer)); !errors.Is(err, context.Canceled) {
			t.Errorf("the error is %v", err)
		}
		if took := time.Since(begin); took != time.Second {
			t.Errorf("it ended after %v", took)
		}
		time.Sleep(time.Second)
	})
}

func TestUsage_IsFoundAtTheEndOfAnAnswer(t *testing.T) {
	for text, want := range map[string]string{
		`…"usage": {"prompt_tokens": 9, "total_tokens": 42}}`: "42",
		`"total_tokens":7,"x":1`:                              "7",
		`"total_tokens": "many"`:                              "",
		`"total_tokens":`:                                     "",
		`no usage`:                                            "",
	} {
		found := usage.FindStringSubmatch(text)
		if (found != nil) != (want != "") || want != "" && found[1] != want {
			t.Errorf("%q: %q", text, found)
		}
	}
}

type seen struct{ urls, keys []string }

func (s *seen) RoundTrip(req *http.Request) (*http.Response, error) {
	s.urls, s.keys = append(s.urls, req.URL.String()), append(s.keys, req.Header.Get("Authorization"))
	return &http.Response{StatusCode: 401, Status: "401 Unauthorized", Body: io.NopCloser(strings.NewReader("")), Request: req}, nil
}

func TestKey_IsSentAndNeverPrinted(t *testing.T) {
	var out bytes.Buffer
	api := new(seen)
	err := list(t.Context(), api, "secret", &out)
	if err == nil || strings.Contains(err.Error()+out.String(), "secret") {
		t.Errorf("%v\n%s", err, &out)
	}
	if len(api.urls) != 1 || api.urls[0] != "https://api.openai.com/v1/models" || api.keys[0] != "Bearer secret" {
		t.Errorf("seen %v", api)
	}
}
