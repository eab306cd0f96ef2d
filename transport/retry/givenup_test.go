package retry

import (
	"context"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// sdk sends the same request up to so many times, as go-retryablehttp does: after the
// Retry-After, or else after a pause of a second that doubles. It returns the result of the
// last attempt.
func sdk(t *testing.T, client *http.Client, req *http.Request, tries int) (int, error) {
	t.Helper()
	pause := time.Second
	for {
		resp, err := client.Do(req)
		code, asked := 0, ""
		if err == nil {
			code, asked = resp.StatusCode, resp.Header.Get("Retry-After")
			require.NoError(t, resp.Body.Close())
		}
		if tries--; tries == 0 || code == 200 {
			return code, err
		}
		sleep := pause
		if d, bad := time.ParseDuration(asked + "s"); bad == nil {
			sleep = d
		}
		pause *= 2
		time.Sleep(sleep)
		if req.GetBody != nil {
			req.Body, err = req.GetBody()
			require.NoError(t, err)
		}
	}
}

// unnamed returns a request whose URL has no password. If it has one, an http.Client makes a
// new header.
func unnamed(t *testing.T) *http.Request {
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "https://api.example.com/items?token=canary", strings.NewReader("text"))
	require.NoError(t, err)
	return req
}

func TestAnSDKThatSendsTheSameRequestAgainMultipliesNoAttempts(t *testing.T) {
	for _, what := range []step{
		status(429), status(429, "Retry-After", "0"), status(429, "Retry-After", "1"), status(429, "Retry-After", "2.5"),
		status(429, "Retry-After", "9"), status(429, "Retry-After", "14"), status(500), status(503), status(503, "Retry-After", "1"),
		reset, dial,
	} {
		for limiter := range limiters(t) {
			for _, timeout := range []time.Duration{0, 20 * time.Second, time.Hour} {
				for _, tries := range []int{1, 3, 5} {
					synctest.Test(t, func(t *testing.T) {
						api, first := play(what), 0
						rt := &RoundTripper{Client: NewClient(&transport.Transport{Base: api, Limiter: limiters(t)[limiter]})}
						client := &http.Client{Timeout: timeout, Transport: base(func(req *http.Request) (*http.Response, error) {
							resp, err := rt.RoundTrip(req)
							if first == 0 {
								first = len(api.went())
							}
							return resp, err
						})}
						_, _ = sdk(t, client, unnamed(t), tries)
						require.Greater(t, first, 1)
						require.LessOrEqual(t, len(api.went()), max(first, tries), "%v, %v, %v, %v: %v alone", what, limiter, timeout, tries, first)
					})
				}
			}
		}
	}
}

// send sends the request, and closes the response.
func send(t *testing.T, rt http.RoundTripper, req *http.Request) (int, error) {
	t.Helper()
	if req.GetBody != nil {
		var err error
		req.Body, err = req.GetBody()
		require.NoError(t, err)
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, nil
}

func TestARequestThatIsSentAgainTooSoonEndsAsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const again = "retry: PUT https://api.example.com/items: sent again too soon after it was given up"
		for _, c := range []struct {
			what step
			set  int
			rest time.Duration // until the SDK may send it again
			text string
		}{
			{status(429, "Retry-After", "2"), 11, 32 * time.Second,
				`: outbound: "api.example.com" is held, retry after 31s (status 429); attempts 0, throttled 0, failed 0`},
			{status(503), 5, 30 * time.Second, ` (status 503); attempts 0, throttled 0, failed 0`},
			{reset, 5, 30 * time.Second, `: read tcp: connection reset by peer; attempts 0, throttled 0, failed 0`},
		} {
			api, admitted := play(c.what), 0
			rt := &RoundTripper{Client: NewClient(&transport.Transport{Base: api, Limiter: count(&admitted, outbound.Unlimited{})})}
			req := unnamed(t)
			_, err := send(t, rt, req)
			require.Equal(t, c.what.err == nil, err == nil, "%v", err)
			require.Len(t, api.went(), c.set)

			time.Sleep(time.Second)
			for range 3 { // none of these prolongs it
				body := newBody("text")
				req.Body = body
				_, err = rt.RoundTrip(req)
				require.EqualError(t, err, again+c.text)
				require.EqualValues(t, 1, body.closed.Load())
				e := ended(t, err)
				require.Equal(t, []int{c.what.status, 0, 0, 0}, []int{e.StatusCode, e.Attempts, e.Throttled, e.Failures})
				if c.what.err != nil {
					require.ErrorIs(t, err, c.what.err)
				}
			}
			if c.what.status == 429 {
				require.Equal(t, c.rest-time.Second, throttled(t, err).RetryAfter)
				require.True(t, throttled(t, err).Held)
			}
			time.Sleep(c.rest - time.Second - time.Nanosecond)
			_, err = send(t, rt, req)
			require.ErrorIs(t, err, errTooSoon)
			require.Equal(t, c.set, admitted, "it has taken a place")

			time.Sleep(time.Nanosecond)
			_, err = send(t, rt, req)
			require.NotErrorIs(t, err, errTooSoon)
			require.Equal(t, 2*c.set, len(api.went()), "a set anew")
		}
	})
}

func TestWhichRequestIsTheSame(t *testing.T) {
	type key struct{}
	for name, c := range map[string]struct {
		next func(*testing.T, *http.Request) *http.Request
		same bool
	}{
		"itself": {func(_ *testing.T, req *http.Request) *http.Request { return req }, true},
		"in another context": {func(_ *testing.T, req *http.Request) *http.Request {
			return req.WithContext(context.WithValue(req.Context(), key{}, 1))
		}, true},
		"another header in the same map": {func(_ *testing.T, req *http.Request) *http.Request {
			req.Header.Set("Cookie", "a=b")
			return req
		}, true},
		"a new one that looks the same": {func(t *testing.T, _ *http.Request) *http.Request { return unnamed(t) }, false},
		"a clone":                       {func(_ *testing.T, req *http.Request) *http.Request { return req.Clone(req.Context()) }, false},
		"another header": {func(_ *testing.T, req *http.Request) *http.Request {
			next := *req
			next.Header = req.Header.Clone()
			return &next
		}, false},
		"another URL": {func(_ *testing.T, req *http.Request) *http.Request {
			next, same := *req, *req.URL
			next.URL = &same
			return &next
		}, false},
		"another method": {func(_ *testing.T, req *http.Request) *http.Request {
			req.Method = http.MethodDelete
			return req
		}, false},
		"another page": {func(_ *testing.T, req *http.Request) *http.Request {
			req.URL.RawQuery = "page=2"
			return req
		}, false},
		"a longer body": {func(t *testing.T, req *http.Request) *http.Request {
			next, err := http.NewRequestWithContext(t.Context(), req.Method, address, strings.NewReader("longer"))
			require.NoError(t, err)
			next.URL, next.Header = req.URL, req.Header
			return next
		}, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			jar, err := cookiejar.New(nil)
			require.NoError(t, err)
			for how, client := range map[string]*http.Client{
				"plain":        {},
				"with Timeout": {Timeout: time.Hour},
				"with a Jar":   {Jar: jar},
			} {
				api := play(status(429, "Retry-After", "1", "Set-Cookie", "session=1"))
				rt := &RoundTripper{Client: NewClient(over(api))}
				client.Transport = rt
				req := unnamed(t)
				for range 2 {
					_, _ = sdk(t, client, req, 1)
					req = c.next(t, req)
					req.Body, err = req.GetBody()
					require.NoError(t, err)
				}
				require.Equal(t, c.same, len(api.went()) == 11, "%s, %s", name, how)
				if !c.same {
					require.Len(t, api.went(), 22, "%s, %s", name, how)
				}
			}
		})
	}
}

func TestWhichRequestsAreNotRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		Config
		steps []step
		req   func(*http.Request) *http.Request
	}{
		"that went out once":            {Config{MaxThrottled: -1, MaxFailures: -1}, []step{status(429, "Retry-After", "1")}, nil},
		"that went out once and failed": {Config{MaxThrottled: -1, MaxFailures: -1}, []step{reset}, nil},
		"whose time is too long":        {Config{MaxWait: 30 * time.Second}, []step{status(429, "Retry-After", "3600")}, nil},
		"that have gone well":           {Config{}, []step{status(429, "Retry-After", "1"), status(200)}, nil},
		"that were a mistake":           {Config{}, []step{status(429, "Retry-After", "1"), status(400)}, nil},
		"an SDK of AWS's": {Config{}, []step{status(500)}, func(req *http.Request) *http.Request {
			req.Header.Set("Amz-Sdk-Request", "attempt=1; max=3")
			return req
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			rt := &RoundTripper{Client: c.NewClient(over(play(c.steps...)))}
			req := unnamed(t)
			if c.req != nil {
				req = c.req(req)
			}
			for range 3 {
				_, err := send(t, rt, req)
				require.NotErrorIs(t, err, errTooSoon, name)
			}
			require.False(t, rt.givenUp.some.Load(), name)
			require.Empty(t, rt.givenUp.ends, name)
		})
	}
	synctest.Test(t, func(t *testing.T) { // nor a request whose context was cancelled
		ctx, cancel := context.WithCancel(t.Context())
		rt := &RoundTripper{Client: NewClient(over(play(status(503))))}
		time.AfterFunc(2*time.Second, cancel)
		_, err := send(t, rt, unnamed(t).WithContext(ctx))
		require.ErrorIs(t, err, context.Canceled)
		require.Empty(t, rt.givenUp.ends)
	})
}

func TestARequestIsRememberedUnderEveryBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{status(429, "Retry-After", "1"), status(503), reset} {
			for name, change := range map[string]func(*retryablehttp.Client){
				"RetryMax":       func(c *retryablehttp.Client) { c.RetryMax = 2 },
				"another policy": func(c *retryablehttp.Client) { c.CheckRetry = retryablehttp.DefaultRetryPolicy },
			} {
				api := play(what)
				client := NewClient(queued(t, api))
				change(client)
				rt, req := &RoundTripper{Client: client}, unnamed(t)
				_, _ = send(t, rt, req)
				set := len(api.went())
				require.Greater(t, set, 1)
				_, err := send(t, rt, req)
				require.ErrorIs(t, err, errTooSoon, name)
				require.Len(t, api.went(), set, name)
			}
		}
	})
}

// The time for which a RoundTripper remembers a request has a bound, whatever the API asks
// for.
func TestARequestIsNotRememberedForLongerThanAPauseMayBe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, timeout := range []time.Duration{0, time.Minute} {
			for _, c := range []Config{{}, {MaxWait: time.Minute}} {
				most := 24 * time.Hour
				if c.MaxWait > 0 || timeout > 0 {
					most = time.Minute
				}
				rt := &RoundTripper{Client: c.NewClient(over(play(status(503), status(429, "Retry-After", "100000000"))))}
				req := unnamed(t)
				_, err := sdk(t, &http.Client{Transport: rt, Timeout: timeout}, req, 1)
				require.NoError(t, err)
				_, err = send(t, rt, req)
				require.LessOrEqual(t, throttled(t, err).RetryAfter, most+30*time.Second)
				require.Greater(t, throttled(t, err).RetryAfter, most+20*time.Second)
			}
		}
	})
}

func TestAsManyRequestsAreRememberedAsThereIsRoomAndNoneForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := &RoundTripper{Client: Config{MaxFailures: 1}.NewClient(over(play(reset)))}
		var last *http.Request
		for range maxGivenUp + 20 {
			last = unnamed(t)
			_, err := send(t, rt, last)
			require.Equal(t, 2, ended(t, err).Attempts)
			require.LessOrEqual(t, len(rt.givenUp.ends), maxGivenUp)
			rt.Client.RetryWaitMin = time.Millisecond // so that the requests do not time out meanwhile
		}
		require.Len(t, rt.givenUp.ends, maxGivenUp)
		_, err := send(t, rt, last)
		require.ErrorIs(t, err, errTooSoon)

		time.Sleep(30 * time.Second)
		_, err = send(t, rt, unnamed(t))
		require.Equal(t, 2, ended(t, err).Attempts)
		require.Len(t, rt.givenUp.ends, 1)

		time.Sleep(30 * time.Second)
		rt.Client.HTTPClient.Transport.(*redirects).transport.Limiter = &refusing{errs: []error{outbound.ErrTooLarge}}
		_, err = send(t, rt, unnamed(t))
		require.ErrorIs(t, err, outbound.ErrTooLarge)
		require.Empty(t, rt.givenUp.ends)
		require.False(t, rt.givenUp.some.Load(), "the next one has no lock to take")
	})
}

func TestManyMaySendTheSameRequestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(503))
		client := &http.Client{Transport: &RoundTripper{Client: NewClient(over(api))}}
		req := unnamed(t)
		req.Body, req.GetBody, req.ContentLength = nil, nil, 0
		all(t, 20, func(int) { _, _ = sdk(t, client, req, 3) })
		require.Len(t, api.went(), 20*5, "those that were on their way, and no more")
	})
}
