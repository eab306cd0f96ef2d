package retry

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/internal/early"
)

// stubborn is a CheckRetry that always tries again.
func stubborn(context.Context, *http.Response, error) (bool, error) { return true, nil }

// replacements are the ways to replace the policy of a client.
var replacements = map[string]func(*retryablehttp.Client){
	"DefaultRetryPolicy":         func(c *retryablehttp.Client) { c.CheckRetry = retryablehttp.DefaultRetryPolicy },
	"ErrorPropagatedRetryPolicy": func(c *retryablehttp.Client) { c.CheckRetry = retryablehttp.ErrorPropagatedRetryPolicy },
	"always":                     func(c *retryablehttp.Client) { c.CheckRetry = stubborn },
	"with a Backoff": func(c *retryablehttp.Client) {
		c.CheckRetry, c.Backoff = retryablehttp.DefaultRetryPolicy, func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 1 }
	},
	"with a PrepareRetry": func(c *retryablehttp.Client) {
		c.CheckRetry, c.PrepareRetry = retryablehttp.DefaultRetryPolicy, func(*http.Request) error { return nil }
	},
	"always, with a PrepareRetry": func(c *retryablehttp.Client) {
		c.CheckRetry, c.PrepareRetry = stubborn, func(*http.Request) error { return nil }
	},
}

func TestACustomPolicyIsBoundedAndPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			for what, c := range map[string]struct {
				step   step
				pauses []int // seconds
				want   Error
			}{
				"dial":        {dial, []int{1, 2, 4, 8}, Error{Failures: 5, Err: dial.err}},
				"reset":       {reset, []int{1, 2, 4, 8}, Error{Failures: 5, Err: reset.err}},
				"500":         {status(500), []int{1, 2, 4, 8}, Error{Failures: 5, StatusCode: 500}},
				"429":         {status(429), []int{1, 2, 4, 8}, Error{Throttled: 5, StatusCode: 429}},
				"Retry-After": {status(429, "Retry-After", "7"), []int{7, 7, 7, 7}, Error{Throttled: 5, StatusCode: 429}},
			} {
				api := play(c.step)
				client := Config{MaxThrottled: 4, MaxWait: time.Hour}.NewClient(over(api))
				replace(client)
				_, err := get(t, client)
				went := api.went()
				require.Len(t, went, len(c.pauses)+1, "%s, %s: %v", name, what, err)
				for i, want := range c.pauses {
					about(t, time.Duration(want)*time.Second, 0.5, went[i+1]-went[i])
				}
				e := ended(t, err)
				require.Equal(t, "https://api.example.com/items", e.URL)
				require.Equal(t, "GET", e.Method)
				require.Equal(t, len(went), e.Attempts)
				require.Equal(t, c.want.Throttled, e.Throttled)
				require.Equal(t, c.want.Failures, e.Failures, "%s, %s: %v", name, what, went)
				require.Equal(t, c.want.StatusCode, e.StatusCode, "%s, %s", name, what)
				if c.want.Throttled > 0 {
					require.True(t, throttled(t, err).Held)
				} else {
					require.Equal(t, c.want.Err, e.Err)
				}
			}
		}
	})
}

func TestACustomPolicyWaitsForTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			wait := &outbound.ThrottledError{Key: "api", RetryAfter: 3 * time.Second}
			for cap, want := range map[time.Duration]int{time.Minute: 1, 10 * time.Second: 0} {
				api := play(status(400))
				client := Config{MaxWait: cap}.NewClient(&transport.Transport{Base: api, Limiter: &refusing{errs: repeat(wait, 6)}})
				replace(client)
				_, err := get(t, client)
				if name == "always" || name == "always, with a PrepareRetry" {
					want *= 5
				}
				require.Len(t, api.went(), want, "%s, %s", name, cap)
				if cap == 10*time.Second {
					require.Equal(t, 3*time.Second, throttled(t, err).RetryAfter, name)
				}
			}
		}
	})
}

// retryablehttp closes the last response before it tells that it is the last.
func TestARoundTripperWithACustomPolicyEndsWithAnErrorAtABound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			for _, what := range []step{status(429, "Retry-After", "1"), status(503)} {
				api := play(what)
				client := Config{MaxThrottled: 2, MaxFailures: 2}.NewClient(over(api))
				replace(client)
				resp, err := (&RoundTripper{Client: client}).RoundTrip(requestWith(t, http.MethodGet, "none"))
				require.Nil(t, resp, name)
				require.Equal(t, what.status, ended(t, err).StatusCode, name)
				require.Len(t, api.went(), 3, name)
				for _, body := range api.bodies {
					require.NotZero(t, body.closed.Load(), name)
				}
			}
		}
	})
}

// A custom policy may stop, and the response then comes back as from any other client.
func TestACustomPolicyMayStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		for _, what := range []step{reset, status(503)} {
			api := play(what)
			client := NewClient(over(api))
			client.CheckRetry = func(context.Context, *http.Response, error) (bool, error) { return false, enough }
			_, err := get(t, client)
			require.ErrorIs(t, err, enough)
			require.Len(t, api.went(), 1)

			client = NewClient(over(play(what)))
			client.CheckRetry = func(context.Context, *http.Response, error) (bool, error) { return false, nil }
			resp, err := get(t, client)
			if what.err == nil {
				require.NoError(t, err)
				require.Equal(t, 503, resp.StatusCode)
				continue
			}
			require.Equal(t, Error{Method: "GET", URL: "https://api.example.com/items", Attempts: 1, Err: reset.err}, *ended(t, err))
		}
	})
}

func TestARetryMaxBoundsACustomPolicyToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			for _, what := range []step{reset, status(503)} {
				api := play(what)
				client := NewClient(over(api))
				replace(client)
				client.RetryMax = 2
				_, err := get(t, client)
				require.Len(t, api.went(), 3, name)
				e := ended(t, err)
				require.Equal(t, 3, e.Attempts, name)
				require.Equal(t, what.status, e.StatusCode, name)
				require.Equal(t, "https://api.example.com/items", e.URL, name)
				require.NotContains(t, err.Error(), "canary", name)
			}
		}
	})
}

func TestTheContextEndsACustomPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			client := NewClient(over(play(reset)))
			replace(client)
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(2*time.Second, cancel)
			req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
			require.NoError(t, err)
			start := time.Now()
			_, err = do(client, req)
			require.ErrorIs(t, err, context.Canceled, name)
			require.Equal(t, 2*time.Second, time.Since(start), name)
		}
	})
}

// A custom policy cannot bring back a body that was sent.
func TestACustomPolicySendsNoEmptyBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, replace := range replacements {
			for _, what := range []step{reset, status(500), status(429)} {
				api := play(what)
				client := NewClient(over(api))
				replace(client)
				_, err := (&RoundTripper{Client: client}).RoundTrip(requestWith(t, http.MethodPut, "once"))
				require.Error(t, err, name)
				require.Equal(t, []string{"text"}, api.said, name)
			}
		}
	})
}

// Without the hook that counts, a custom policy would have neither bound nor pause.
func TestWithoutTheHookACustomPolicyTriesNothingAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{reset, status(503)} {
			for _, roundTripper := range []bool{false, true} {
				api := play(what)
				client := NewClient(over(api))
				client.RequestLogHook, client.CheckRetry = nil, retryablehttp.DefaultRetryPolicy
				var err error
				if roundTripper {
					_, err = (&RoundTripper{Client: client}).RoundTrip(requestWith(t, http.MethodGet, "none"))
				} else {
					_, err = get(t, client)
				}
				require.Len(t, api.went(), 1)
				require.ErrorContains(t, ended(t, err), "RequestLogHook")
			}
		}
		// Neither does the client's own policy.
		api := play(status(503))
		client := NewClient(over(api))
		client.RequestLogHook = nil
		resp, err := (&RoundTripper{Client: client}).RoundTrip(requestWith(t, http.MethodGet, "none"))
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		require.NoError(t, resp.Body.Close())
		require.Len(t, api.went(), 1)
	})
}

// The API refuses the first attempt, and the limiter admits the second one too early. A policy that
// then stops ends with the time to come back, and not with what tells the client's own Transport
// that nothing went out: one around it would give back what the first attempt has cost.
func TestACustomPolicyMayStopWhenTheLimiterAdmitsTooEarly(t *testing.T) {
	for _, handler := range []retryablehttp.ErrorHandler{giveUp, retryablehttp.PassthroughErrorHandler} {
		synctest.Test(t, func(t *testing.T) {
			api := play(status(429, "Retry-After", "7"))
			client := NewClient(&transport.Transport{Base: api, Limiter: outbound.Unlimited{}})
			client.ErrorHandler = handler
			client.CheckRetry = func(_ context.Context, resp *http.Response, _ error) (bool, error) { return resp != nil, nil }
			b := bucket(t, outbound.Limit{Capacity: 3, LeakRate: 1e-9})
			around := &transport.Transport{Base: &RoundTripper{Client: client}, Limiter: b}
			_, err := (&http.Client{Transport: around}).Do(requestWith(t, http.MethodGet, "none"))
			require.Len(t, api.went(), 1)
			require.InDelta(t, 7, throttled(t, err).RetryAfter.Seconds(), 1e-6)
			require.NotErrorIs(t, err, early.Err)
			is, err := b.State(t.Context())
			require.NoError(t, err)
			require.InDelta(t, 1, is.Level, 1e-6)
		})
	}
}
