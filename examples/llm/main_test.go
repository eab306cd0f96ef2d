package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/examples/internal/exampletest"
	"github.com/dripfeed/dripfeed/outbound"
)

func demo(ctx context.Context, out io.Writer) error { return run(ctx, newAPI(), out) }

// Each model uses 92 % of its rate or more, with two refusals at most. The rest of the day is what
// the calls have left. An interrupt ends the workers.
func TestProgram_UsesBothModelsFully(t *testing.T) {
	out, _ := exampletest.Output(t, demo)
	for _, name := range []string{"small", "large"} {
		//                       calls refused tokens of the rate left today
		row := regexp.MustCompile(name + ` +(\d+) +[0-2] +\d+ +(9[2-9]|100) % +(\d+)`).FindStringSubmatch(out)
		if row == nil {
			t.Fatalf("%s in\n%s", name, out)
		}
		calls, _ := strconv.Atoi(row[1])
		if left, _ := strconv.Atoi(row[3]); left > requestsPerDay-calls || left < requestsPerDay-calls-20 { // each worker may have one call in progress
			t.Errorf("%s: %d requests are left after %d", name, left, calls)
		}
	}
	exampletest.Interrupt(t, time.Second, demo)
}

// When the requests of a day are used, a call waits until the first of them are 24 hours old, though
// the minutes have capacity.
func TestLimits_KeepTheQuotaOfADay(t *testing.T) {
	exampletest.InVirtualTime(t, func(t *testing.T) {
		m, cost := newModel(nil, "small", limits(time.Minute)), outbound.Cost{requests: 1, tokens: 10}
		for range requestsPerDay {
			p := exampletest.Must(m.limiter.Acquire(t.Context(), cost))
			p.Done()
		}
		if took := time.Since(exampletest.Begin); took < 99*time.Minute || took > 102*time.Minute {
			t.Errorf("%d requests left in %v, want about 100 minutes", requestsPerDay, took)
		}
		time.Sleep(time.Hour)
		_, err := m.bucket.Acquire(t.Context(), cost)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok || full.Limit != "requests per day" {
			t.Fatalf("%v, want a refusal by the requests of the day", err)
		}
		if at := time.Since(exampletest.Begin) + full.RetryAfter; at < 24*time.Hour || at > 24*time.Hour+23*time.Minute { // a 64th of the day
			t.Errorf("a call is admitted after %v", at)
		}
	})
}

// The tokens of a call are at the end of its answer.
func TestUsage_IsFoundAtTheEndOfAnAnswer(t *testing.T) {
	for text, want := range map[string]string{
		`…"usage": {"prompt_tokens": 9, "total_tokens": 42}}`: "42",
		`"total_tokens":7,"x":1`:                              "7",
		`"total_tokens": "many"`:                              "",
	} {
		if found := append(usage.FindStringSubmatch(text), "", ""); found[1] != want {
			t.Errorf("%q: %q", text, found)
		}
	}
}

// With -real the key goes to OpenAI, and is never printed.
func TestReal_KeyIsSentAndNeverPrinted(t *testing.T) {
	exampletest.KeepsSecret(t, "https://api.openai.com/v1/models", "Authorization", "Bearer secret", func(ctx context.Context, api http.RoundTripper, out io.Writer) error {
		return list(ctx, api, "secret", out)
	})
}
