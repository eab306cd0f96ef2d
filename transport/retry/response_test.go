package retry

import (
	"io"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// The last response is returned unread and open, as an SDK needs it. X-Should-Retry is false on a copy of its
// header if its request was sent as often as allowed. Each response is closed once.
func TestLastResponse_IsUnreadAndMarked(t *testing.T) {
	soon, late := status(429, "Retry-After", "1"), status(429, "Retry-After", "3600", "X-Should-Retry", "true")
	full := repeat(&outbound.ThrottledError{Key: "api", RetryAfter: time.Hour}, 99)
	for name, c := range map[string]struct {
		steps    []step
		limiter  outbound.Limiter
		retryMax int
		policy   retryablehttp.CheckRetry
		attempts int
		status   int
		marked   bool
	}{
		"refused to the end":        {steps: []step{soon}, retryMax: 4, attempts: 5, status: 429, marked: true},
		"refused, RetryMax 2":       {steps: []step{soon}, retryMax: 2, attempts: 3, status: 429, marked: true},
		"refused for too long":      {steps: []step{late}, retryMax: 4, attempts: 1, status: 429, marked: true},
		"overloaded for too long":   {steps: []step{status(503, "Retry-After", "3600")}, retryMax: 4, attempts: 1, status: 503, marked: true},
		"failed to the end":         {steps: []step{status(500)}, retryMax: 4, attempts: 5, status: 500, marked: true},
		"failed, without a header":  {steps: []step{{status: 503}}, retryMax: 4, attempts: 5, status: 503, marked: true},
		"the limiter refuses":       {limiter: &refusing{errs: full}, retryMax: 4, status: 429, marked: true},
		"a success":                 {steps: []step{status(200)}, retryMax: 4, attempts: 1, status: 200},
		"a success in the end":      {steps: []step{status(429), status(200)}, retryMax: 4, attempts: 2, status: 200},
		"a mistake":                 {steps: []step{status(400)}, retryMax: 4, attempts: 1, status: 400},
		"from a cache":              {steps: []step{status(429, "X-From-Cache", "1")}, retryMax: 4, attempts: 1, status: 429},
		"not implemented":           {steps: []step{status(501)}, retryMax: 4, attempts: 1, status: 501},
		"the SDK retries, refused":  {steps: []step{soon}, attempts: 1, status: 429},
		"the SDK retries, failed":   {steps: []step{status(503)}, attempts: 1, status: 503},
		"another policy, refused":   {steps: []step{soon}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 3, status: 429},
		"another policy, failed":    {steps: []step{status(503)}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 3, status: 503},
		"another policy, a success": {steps: []step{status(200)}, retryMax: 2, policy: retryablehttp.DefaultRetryPolicy, attempts: 1, status: 200},
	} {
		for way, send := range ways {
			synctest.Test(t, func(t *testing.T) {
				api := play(c.steps...)
				rt := &transport.Transport{Base: api, Limiter: c.limiter, OnRefusal: transport.TooManyRequests}
				client := Config{MaxWait: 30 * time.Second}.NewClient(rt)
				client.RetryMax = c.retryMax
				if c.policy != nil {
					client.CheckRetry = c.policy
				}
				resp, err := send(client, requestWith(t, http.MethodGet, "none"))
				require.NoError(t, err, name, way)
				require.Len(t, api.went(), c.attempts, name, way)
				require.Equal(t, c.status, resp.StatusCode, name, way)
				require.Equal(t, c.marked, resp.Header.Get("X-Should-Retry") == "false", name, way)
				if len(api.bodies) > 0 {
					require.Zero(t, api.bodies[len(api.bodies)-1].closed.Load(), name, way)
					whole(t, resp, http.StatusText(c.status))
				}
				api.closed(t, name, way)
			})
		}
	}
	require.Equal(t, status(429, "Retry-After", "3600", "X-Should-Retry", "true"), late, "the header may be a cache's")
}

// whole asserts that the program can read the response, and closes it.
func whole(t *testing.T, resp *http.Response, want string) {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, want, string(text))
	require.NoError(t, resp.Body.Close())
}

// An SDK of AWS announces how often it sends a request. The client leaves the responses to it, and waits for
// the limiter.
func TestAWS_ResponsesAreLeftToTheSDK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for header, left := range map[string]bool{
			"attempt=1; max=3":                       true,
			"ttl=20260101T000000Z; attempt=3; max=3": true,
			"attempt=1; max=1":                       false,
			"attempt=1":                              true, // without a bound
			"ttl=20260101T000000Z":                   false,
			"":                                       false,
			"attempt=1; max=":                        false,
			"attempt=1; max=99999999999999999999":    false,
			"attempt=1; max=three; max=3":            false,
			"max=2":                                  true,
			"attempt=1; max=1; ttl=20260101T000000Z ": false,
		} {
			for _, what := range []step{status(429, "Retry-After", "1"), status(500)} {
				req := requestWith(t, http.MethodGet, "none")
				req.Header.Set("Amz-Sdk-Request", header)
				api := play(what)
				limiter := &refusing{errs: []error{&outbound.ThrottledError{Key: "api", RetryAfter: 3 * time.Second}}}
				client := NewClient(&transport.Transport{Base: api, Limiter: limiter})
				resp, err := client.StandardClient().Do(req)
				require.NoError(t, err)
				require.Equal(t, left, resp.Header.Get("X-Should-Retry") == "", header)
				whole(t, resp, http.StatusText(what.status))
				about(t, 3*time.Second, 0.1, api.went()[0])
				require.Equal(t, left, len(api.went()) == 1, header)
			}
			// The SDK would not know an error's cause, so the client sends again after errors.
			req := requestWith(t, http.MethodGet, "none")
			req.Header.Set("Amz-Sdk-Request", header)
			api := play(reset)
			_, err := NewClient(over(api)).StandardClient().Do(req)
			require.False(t, ended(t, err).RetryableError())
			require.Len(t, api.went(), 5)
		}
	})
}
