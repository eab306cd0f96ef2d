package retry

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

func TestTheCallersRequestIsNotChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(reset, status(429, "Retry-After", "1"), status(200))
		req := requestWith(t, http.MethodPut, "replayable")
		req.Header.Set("Authorization", "Bearer canary")
		before := *req
		header := req.Header.Clone()
		resp, err := (&RoundTripper{Client: NewClient(over(api))}).RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Same(t, before.Context(), req.Context())
		require.Same(t, before.URL, req.URL)
		require.Equal(t, before.Body, req.Body)
		require.Equal(t, before.ContentLength, req.ContentLength)
		require.NotNil(t, req.GetBody)
		require.Equal(t, header, req.Header)
	})
}

func TestOneRequestMayBeSentByManyAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(429, "Retry-After", "1"), reset, status(200))
		client := &http.Client{Transport: &RoundTripper{Client: NewClient(over(api))}}
		req := requestWith(t, http.MethodGet, "none")
		all(t, 20, func(int) {
			resp, err := client.Do(req)
			require.NoError(t, err)
			_ = resp.Body.Close()
		})
		require.Len(t, api.said, 22)
	})
}

func TestTheLengthIsSentAsGiven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lengths []int64
		client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			lengths = append(lengths, req.ContentLength)
			require.NotNil(t, req.GetBody, "with which Base replaces a connection that was closed")
			_ = req.Body.Close()
			return nil, reset.err
		})))
		for _, length := range []int64{4, -1} {
			req := requestWith(t, http.MethodPut, "replayable")
			req.ContentLength = length
			_, err := (&RoundTripper{Client: client}).RoundTrip(req)
			require.ErrorIs(t, err, reset.err)
		}
		require.Equal(t, []int64{4, 4, 4, 4, 4, -1, -1, -1, -1, -1}, lengths)
	})
}

func TestTheHTTPClientsCheckRedirectCounts(t *testing.T) {
	api := play(status(302, "Location", "/b"))
	client := &http.Client{
		Transport:     &RoundTripper{Client: NewClient(over(api))},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	resp, err := client.Get("https://api.example.com/a")
	require.NoError(t, err)
	require.Equal(t, 302, resp.StatusCode)
	require.Len(t, api.said, 1)
}

func TestAnHTTPClientsTimeoutIsRefusedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, limiter := range limiters(t) {
			for how, client := range map[string]*http.Client{
				"RoundTripper":   {Transport: &RoundTripper{Client: NewClient(&transport.Transport{Base: play(status(429, "Retry-After", "20")), Limiter: limiter})}},
				"StandardClient": NewClient(&transport.Transport{Base: play(status(429, "Retry-After", "20")), Limiter: limiter}).StandardClient(),
			} {
				client.Timeout = 10 * time.Second
				start := time.Now()
				resp, err := client.Get("https://api.example.com/")
				require.Zero(t, time.Since(start), "%s, %s", name, how)
				if how == "RoundTripper" {
					require.NoError(t, err)
					require.Equal(t, "20", resp.Header.Get("Retry-After"))
					require.NoError(t, resp.Body.Close())
					time.Sleep(time.Minute)
					continue
				}
				require.Equal(t, 20*time.Second, throttled(t, err).RetryAfter)
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, err, &timeout)
				require.True(t, timeout.Timeout(), "%s, %s", name, how)
				time.Sleep(time.Minute)
			}
		}
	})
}

func TestAStandardClientTriesAgainAsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(reset, status(429, "Retry-After", "1"), status(200))
		client := NewClient(&transport.Transport{Base: api, Limiter: queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{})}).StandardClient()
		resp, err := client.Post("https://api.example.com/", "text/plain", strings.NewReader("text"))
		require.ErrorIs(t, err, reset.err, "a POST of which something went out")
		require.Nil(t, resp)
		resp, err = client.Post("https://api.example.com/", "text/plain", strings.NewReader("text"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, []string{"text", "text", "text"}, api.said)
	})
}

// idle counts how often its idle connections were closed.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

func TestARequestThatIsGivenUpLeavesTheConnectionsOfOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &idle{RoundTripper: play(reset)}
		client := NewClient(over(b))
		_, err := get(t, client)
		require.Error(t, err)
		require.Zero(t, b.closed)
		(&http.Client{Transport: &RoundTripper{Client: client}}).CloseIdleConnections()
		require.Equal(t, 1, b.closed)

		client.HTTPClient.Transport = b // a transport of the program's own
		(&RoundTripper{Client: client}).CloseIdleConnections()
		require.Equal(t, 2, b.closed)
		(&RoundTripper{}).CloseIdleConnections()
		plain().CloseIdleConnections()
	})
}

// plain returns a RoundTripper over a Base that has no idle connections.
func plain() *RoundTripper {
	return &RoundTripper{Client: NewClient(over(play(status(200))))}
}

// Over a real network, too, the client sends nothing twice but what was refused, and uses
// connections again.
func TestItWorksOverARealNetwork(t *testing.T) {
	calls := 0
	var remotes []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		text, _ := io.ReadAll(req.Body)
		remotes = append(remotes, req.RemoteAddr)
		if calls++; calls < 3 {
			w.Header().Set("Retry-After", "0.01")
			w.WriteHeader(429)
			_, _ = w.Write(make([]byte, 40<<10))
			return
		}
		_, _ = w.Write(text)
	}))
	defer server.Close()
	b := &http.Transport{}
	defer b.CloseIdleConnections()
	client := &http.Client{Transport: &RoundTripper{Client: NewClient(over(b))}}
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("text"))
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Equal(t, "text", string(text))
	require.Equal(t, 3, calls)
	require.Equal(t, remotes[0], remotes[1], "the page of 40 KiB was not drained")
	require.Equal(t, remotes[0], remotes[2])
}

func TestACustomHookCallsTheFirstOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(503), status(429, "Retry-After", "1"), status(200))
		client := NewClient(over(api))
		first := client.RequestLogHook
		var attempts, answers []int
		client.RequestLogHook = func(l retryablehttp.Logger, req *http.Request, n int) {
			first(l, req, n)
			attempts = append(attempts, n)
		}
		client.ResponseLogHook = func(_ retryablehttp.Logger, resp *http.Response) { answers = append(answers, resp.StatusCode) }
		_, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, []int{503, 429, 200}, answers)
		require.Greater(t, len(attempts), 2)

		// Without the first hook the client tries nothing again, and nothing else changes.
		client.RequestLogHook = nil
		api = play(status(503))
		client = NewClient(over(api))
		client.RequestLogHook = nil
		resp, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, 503, resp.StatusCode)
		client = NewClient(over(play(reset)))
		client.RequestLogHook = nil
		_, err = get(t, client)
		require.ErrorIs(t, err, reset.err)
	})
}

// A custom PrepareRetry, such as one that signs the request anew, takes the place of the one
// that waits. The client waits elsewhere.
func TestACustomPrepareRetryShortensNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{reset, status(500), status(429, "Retry-After", "1")} {
			api := play(what, status(200))
			client := NewClient(over(api))
			client.PrepareRetry = func(*http.Request) error { return nil }
			client.Backoff = func(_, _ time.Duration, _ int, _ *http.Response) time.Duration { return 1 }
			_, err := get(t, client)
			require.NoError(t, err)
			about(t, time.Second, 0.5, api.went()[1])
		}
		full := &outbound.ThrottledError{Key: "api", RetryAfter: 7 * time.Second}
		limiter := &refusing{errs: []error{full}}
		client := NewClient(&transport.Transport{Base: play(status(200)), Limiter: limiter})
		client.PrepareRetry = func(*http.Request) error { return nil }
		start := time.Now()
		_, err := get(t, client)
		require.NoError(t, err)
		about(t, 7*time.Second, 0.1, time.Since(start))
		require.EqualValues(t, 2, limiter.asked.Load())
	})
}

func TestARequestMayBeUsedASecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := Config{MaxFailures: 1}.NewClient(over(play(reset, status(200), reset, status(200))))
		req, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		require.NoError(t, err)
		for range 2 {
			_, err = do(client, req)
			require.NoError(t, err)
		}
		require.Equal(t, t.Context(), requestOf(req.Context()).parent, "the context grows")
	})
}

// Requests in one context do not count each other's attempts.
func TestRequestsInOneContextCountApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := Config{MaxFailures: 1}.NewClient(over(play(reset, status(200))))
		api := play(reset, status(200))
		outer := Config{MaxFailures: 1}.NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			token, err := retryablehttp.NewRequestWithContext(req.Context(), http.MethodGet, address, nil)
			require.NoError(t, err)
			if _, err = do(inner, token); err != nil {
				return nil, err
			}
			return api.RoundTrip(req)
		})))
		_, err := get(t, outer)
		require.NoError(t, err)
		require.Len(t, api.said, 2)
	})
}

func TestNothingIsLogged(t *testing.T) {
	require.Nil(t, NewClient(over(play(status(200)))).Logger)
}

func TestACostInTheContextIsTakenByEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1e-6})
		ctx, permit := transport.WithCost(context.Background(), outbound.Cost{10})
		req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		require.NoError(t, err)
		_, err = do(NewClient(&transport.Transport{Base: play(reset, status(200)), Limiter: b}), req)
		require.NoError(t, err)
		permit.Settle(outbound.Cost{4})
		state, err := b.State(t.Context())
		require.NoError(t, err)
		require.InDelta(t, 14, state.Level, 1e-3)
	})
}
