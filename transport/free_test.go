package transport_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// A 304 with a token costs nothing of an hourly quota, and is paced by a limit on bursts
// (docs.github.com, "Best practices for using the REST API"; github.com/kedacore/keda/issues/6503).
func TestFree_ReturnsItsCostToQuotas(t *testing.T) {
	hour, minute := outbound.Window(5000, time.Hour), outbound.Window(900, time.Minute)
	core := outbound.Window(5000, time.Hour).Of(1, "core")
	for name, c := range map[string]struct {
		limits []outbound.Limit
		status int
		limit  string
		units  map[string]int
		want   []float64
	}{
		"the quota":                {[]outbound.Limit{hour}, 304, "5000", nil, []float64{0}},
		"a 200":                    {[]outbound.Limit{hour}, 200, "5000", nil, []float64{1}},
		"without a token":          {[]outbound.Limit{hour}, 304, "60", nil, []float64{1}},
		"bursts":                   {[]outbound.Limit{minute}, 304, "5000", nil, []float64{1}},
		"the quota next to bursts": {[]outbound.Limit{hour, minute}, 304, "5000", nil, []float64{1, 1}},
		"Units separate both":      {[]outbound.Limit{minute, core}, 304, "5000", map[string]int{"core": 1}, []float64{1, 0}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("github", c.limits...))
			trip(t, &transport.Transport{Limiter: b, Profile: profile.GitHub, Units: c.units,
				Cost: func(*http.Request) outbound.Cost { return outbound.Cost{1, float64(len(c.units))} },
				Base: answer(c.status, http.NoBody, "X-Ratelimit-Limit", c.limit, "X-Ratelimit-Remaining", "50", "X-Ratelimit-Resource", "core")})
			states, err := b.States(t.Context())
			if err != nil || len(states) != len(c.want) {
				t.Fatal(states, err)
			}
			for i, s := range states {
				if s.Level != c.want[i] {
					t.Errorf("%s: %v charged to %v, want %v", name, s.Level, s.Limit, c.want[i])
				}
			}
		})
	}
}

// A call above what the API ever admits holds no other call, and returns its tokens
// (github.com/Aider-AI/aider/issues/1880).
func TestTooLarge_HoldsNoOtherCall(t *testing.T) {
	for name, c := range map[string]struct{ body, after string }{
		"OpenAI": {`{"error":{"message":"Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 36278.","type":"tokens","code":"rate_limit_exceeded"}}`, "0"},
		"Azure":  {`{"error":{"code":"429","message":"Requests to the ChatCompletions_Create Operation have exceeded token rate limit of your current OpenAI S0 pricing tier. Please retry after 86400 seconds."}}`, "86400"},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("model", outbound.Window(10, time.Minute), outbound.Window(1e6, time.Minute).Of(1, "tokens")))
			trip(t, &transport.Transport{Limiter: b, Profile: profile.OpenAI,
				Cost: func(*http.Request) outbound.Cost { return outbound.Cost{1, 36278} },
				Base: roundTripper(func(req *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: 429, Body: io.NopCloser(strings.NewReader(c.body)), ContentLength: -1, Request: req,
						Header: http.Header{"Content-Type": {"application/json"}, "Retry-After": {c.after}}}, nil
				})})
			states, err := b.States(t.Context())
			if err != nil || len(states) != 2 || states[0].Level != 1 || states[1].Level != 0 || states[0].HeldFor != 0 || states[0].Speed != 1 {
				t.Errorf("%s: %+v, %v, want a request charged and no hold", name, states, err)
			}
		})
	}
}
