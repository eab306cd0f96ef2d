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
)

// A CheckRetry of the program's own has the pauses of the client, and its limiter.
func TestACustomPolicyIsBoundedAndPaused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, policy := range map[string]retryablehttp.CheckRetry{
			"DefaultRetryPolicy":         retryablehttp.DefaultRetryPolicy,
			"ErrorPropagatedRetryPolicy": retryablehttp.ErrorPropagatedRetryPolicy,
			"always":                     func(context.Context, *http.Response, error) (bool, error) { return true, nil },
		} {
			for what, c := range map[string]struct {
				step   step
				pauses []int // seconds
			}{
				"dial":        {dial, []int{1, 2, 4, 8}},
				"reset":       {reset, []int{1, 2, 4, 8}},
				"500":         {status(500), []int{1, 2, 4, 8}},
				"429":         {status(429), []int{1, 2, 4, 8}},
				"Retry-After": {status(429, "Retry-After", "7"), []int{7, 7, 7, 7}},
			} {
				api := play(c.step)
				full := &outbound.ThrottledError{Key: "api", RetryAfter: 3 * time.Second}
				client := NewClient(&transport.Transport{Base: api, Limiter: &refusing{errs: []error{full}}})
				client.CheckRetry = policy
				resp, err := get(t, client)
				went := api.went()
				require.Len(t, went, 5, "%s, %s: %v", name, what, err)
				about(t, 3*time.Second, 0.1, went[0])
				for i, want := range c.pauses {
					about(t, time.Duration(want)*time.Second, 0.5, went[i+1]-went[i])
				}
				require.True(t, (resp == nil) != (err == nil), "%s, %s", name, what)
				for _, body := range api.bodies {
					require.EqualValues(t, 1, body.closed.Load(), "%s, %s", name, what)
				}
			}
		}
	})
}

// A custom policy may stop. If it returns an error, that comes back, and the response is closed.
func TestACustomPolicyMayStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		enough := errors.New("enough")
		for _, what := range []step{reset, status(503)} {
			for _, own := range []error{enough, nil} {
				api := play(what)
				client := NewClient(over(api))
				client.CheckRetry = func(context.Context, *http.Response, error) (bool, error) { return false, own }
				resp, err := get(t, client)
				require.Len(t, api.went(), 1)
				switch {
				case own != nil:
					require.ErrorIs(t, err, enough)
					require.Nil(t, resp)
				case what.err != nil:
					require.ErrorIs(t, err, reset.err)
					require.Equal(t, 1, ended(t, err).Attempts)
				default:
					require.NoError(t, err)
					require.Equal(t, 503, resp.StatusCode)
				}
				for _, body := range api.bodies {
					require.EqualValues(t, 1, body.closed.Load())
				}
			}
		}
	})
}
