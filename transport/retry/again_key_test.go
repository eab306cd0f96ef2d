package retry

import (
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// keyedRequest returns a request with an Idempotency-Key.
func keyedRequest(t *testing.T, key string) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/items", strings.NewReader("text"))
	require.NoError(t, err)
	req.Header.Set("Idempotency-Key", key)
	return req
}

// sdk sends requests with the same key up to so many times, after pauses of a second that double.
func sdk(t *testing.T, client *http.Client, tries int) (code int, err error) {
	for pause := time.Second; ; pause *= 2 {
		var resp *http.Response
		if resp, err = client.Do(keyedRequest(t, "key")); err == nil {
			code = resp.StatusCode
			require.NoError(t, resp.Body.Close())
		}
		if tries--; tries == 0 || code == 200 {
			return code, err
		}
		time.Sleep(pause)
	}
}

func TestAnSDKThatSendsTheSameKeyAgainMultipliesNoAttempts(t *testing.T) {
	for _, what := range []step{status(429), status(429, "Retry-After", "1"), status(500), status(503), reset, dial} {
		for limiter := range limiters(t) {
			for _, timeout := range []time.Duration{0, time.Hour} {
				for _, tries := range []int{1, 3, 5} {
					synctest.Test(t, func(t *testing.T) {
						api := play(what)
						client := NewClient(&transport.Transport{Base: api, Limiter: limiters(t)[limiter]}).StandardClient()
						client.Timeout = timeout
						_, _ = sdk(t, client, tries)
						require.Len(t, api.went(), 5, "%v, %v, %v, %v", what, limiter, timeout, tries)
					})
				}
			}
		}
	}
}

func TestARequestThatComesAgainTooSoonIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			what step
			text string
		}{
			{status(429, "Retry-After", "2"), "status 429"},
			{status(503), "status 503"},
			{reset, "read tcp: connection reset by peer"},
		} {
			api, admitted := play(c.what), 0
			client := NewClient(&transport.Transport{Base: api, Limiter: count(&admitted, outbound.Unlimited{})})
			rt := client.StandardClient().Transport
			send := func(key string) error {
				resp, err := rt.RoundTrip(keyedRequest(t, key))
				if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				return err
			}
			require.Equal(t, c.what.err == nil, send("key") == nil)
			require.Len(t, api.went(), 5)
			time.Sleep(givenUpFor - 1)
			for range 3 { // none of these prolongs it
				err := send("key")
				require.EqualError(t, err, "retry: POST https://api.example.com/items: not sent: sent again within 30 s: "+c.text)
				require.Zero(t, ended(t, err).Attempts)
				if c.what.err != nil {
					require.ErrorIs(t, err, c.what.err)
				}
			}
			require.Equal(t, 5, admitted, "it has taken a place")
			_ = send("other")
			require.Len(t, api.went(), 10, "another key")
			time.Sleep(time.Nanosecond)
			require.NotErrorIs(t, send("key"), errAgain)
			require.Len(t, api.went(), 15)
		}
	})
}

func TestWhichRequestsAreNotRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		max   int
		steps []step
	}{
		"that went out once":        {0, []step{status(429, "Retry-After", "1")}},
		"whose time is too long":    {4, []step{status(429, "Retry-After", "3600")}},
		"that have gone well":       {4, []step{status(429, "Retry-After", "1"), status(200)}},
		"that were a mistake":       {1, []step{status(429, "Retry-After", "1"), status(400)}},
		"that an SDK of AWS's sent": {4, []step{status(500)}},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := Config{MaxWait: 30 * time.Second}.NewClient(over(play(c.steps...)))
			client.RetryMax = c.max
			for range 3 {
				req := keyedRequest(t, "key")
				if strings.Contains(name, "AWS") {
					req.Header.Set("Amz-Sdk-Request", "attempt=1; max=3")
				}
				resp, err := client.StandardClient().Do(req)
				require.NoError(t, err, name)
				require.NoError(t, resp.Body.Close())
			}
		})
	}
}
