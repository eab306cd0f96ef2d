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

func TestOneRequestMayBeSentByManyAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(429, "Retry-After", "1"), reset, status(200))
		client := NewClient(over(api)).StandardClient()
		req := requestWith(t, http.MethodGet, "none")
		all(t, 20, func(int) {
			resp, err := client.Do(req)
			require.NoError(t, err)
			_ = resp.Body.Close()
		})
		require.Len(t, api.said, 22)
	})
}

func TestTheHTTPClientsCheckRedirectCounts(t *testing.T) {
	api := play(status(302, "Location", "/b"))
	client := NewClient(over(api)).StandardClient()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := client.Get("https://api.example.com/a")
	require.NoError(t, err)
	require.Equal(t, 302, resp.StatusCode)
	require.Len(t, api.said, 1)
}

func TestAnHTTPClientsTimeoutIsRefusedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, limiter := range limiters(t) {
			client := NewClient(&transport.Transport{Base: play(status(429, "Retry-After", "20")), Limiter: limiter}).StandardClient()
			client.Timeout = 10 * time.Second
			start := time.Now()
			resp, err := client.Get("https://api.example.com/")
			require.Zero(t, time.Since(start), name)
			require.NoError(t, err)
			require.Equal(t, "20", resp.Header.Get("Retry-After"))
			require.NoError(t, resp.Body.Close())
			if b, ok := outbound.As[*outbound.Bucket](limiter); ok {
				require.NoError(t, b.Hold(t.Context(), 20*time.Second))
				_, err = client.Get("https://api.example.com/")
				require.Equal(t, 20*time.Second, throttled(t, err).RetryAfter)
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, err, &timeout)
				require.True(t, timeout.Timeout())
				require.Zero(t, time.Since(start), name)
			}
			time.Sleep(time.Minute)
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
	})
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
	client := NewClient(over(b)).StandardClient()
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

// A PrepareRetry of the program's own, such as one that signs the request anew, shortens no pause.
func TestACustomPrepareRetryShortensNoPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{reset, status(500), status(429, "Retry-After", "1")} {
			api := play(what, what, status(200))
			client := NewClient(over(api))
			client.PrepareRetry = func(*http.Request) error { return nil }
			_, err := get(t, client)
			require.NoError(t, err)
			went := api.went()
			about(t, time.Second, 0.5, went[1])
			if what.header.Get("Retry-After") == "" {
				about(t, 2*time.Second, 0.5, went[2]-went[1])
			}
		}
	})
}

func TestARequestMayBeUsedASecondTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := once(over(play(reset, status(200), reset, status(200))))
		req, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		require.NoError(t, err)
		for range 2 {
			_, err = do(client, req)
			require.NoError(t, err)
		}
		again := req.Context().(*retried)
		require.Equal(t, t.Context(), again.Context, "the context grows")
	})
}

// Requests in one context do not count each other's attempts.
func TestRequestsInOneContextCountApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := once(over(play(reset, status(200))))
		api := play(reset, status(200))
		outer := once(over(base(func(req *http.Request) (*http.Response, error) {
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

// once returns a client that sends a request again once.
func once(t *transport.Transport) *retryablehttp.Client {
	client := NewClient(t)
	client.RetryMax = 1
	return client
}
