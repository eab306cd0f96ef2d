package retry

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/transport"
)

// What a program sets in the client.
func TestHooks_OfTheProgram(t *testing.T) {
	bubble(t, "A CheckRetry of the program's own has the pauses of the client, and its limiter", func(t *testing.T) {
		for name, policy := range map[string]retryablehttp.CheckRetry{
			"DefaultRetryPolicy":         retryablehttp.DefaultRetryPolicy,
			"ErrorPropagatedRetryPolicy": retryablehttp.ErrorPropagatedRetryPolicy,
			"always":                     func(context.Context, *http.Response, error) (bool, error) { return true, nil },
		} {
			for what, c := range map[string]struct {
				step   step
				pauses []int // seconds
			}{
				"dial": {dial, []int{1, 2, 4, 8}}, "reset": {reset, []int{1, 2, 4, 8}}, "500": {status(500), []int{1, 2, 4, 8}},
				"429": {status(429), []int{1, 2, 4, 8}}, "Retry-After": {status(429, "Retry-After", "7"), []int{7, 7, 7, 7}},
			} {
				api := play(c.step)
				client := paced(0, api, &refusing{errs: []error{full(3 * time.Second)}})
				client.CheckRetry = policy
				resp, err := get(t, client)
				went := api.went()
				require.Len(t, went, 5, "%s, %s: %v", name, what, err)
				about(t, 3*time.Second, 0.1, went[0])
				for i, want := range c.pauses {
					about(t, time.Duration(want)*time.Second, 0.5, went[i+1]-went[i])
				}
				require.True(t, (resp == nil) != (err == nil), "%s, %s", name, what)
				api.closed(t, "%s, %s", name, what)
			}
		}
	})
	bubble(t, "A CheckRetry of the program's own may stop. Its error is returned, and the response is closed", func(t *testing.T) {
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
				api.closed(t)
			}
		}
	})
	bubble(t, "A PrepareRetry of the program's own, such as one that signs the request, changes what is sent and shortens no pause", func(t *testing.T) {
		// If it fails, its error is returned and the response is closed.
		for _, what := range []step{reset, status(500), status(429)} {
			api := play(what, what, status(200))
			var signed []string
			client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
				signed = append(signed, req.Header.Get("Signature"))
				return api.RoundTrip(req)
			})))
			client.PrepareRetry = func(req *http.Request) error {
				req.Header.Set("Signature", req.Header.Get("Signature")+"x")
				return nil
			}
			answered(t, 200, client)
			require.Equal(t, []string{"", "x", "xx"}, signed)
			went := api.went()
			about(t, time.Second, 0.5, went[1])
			about(t, 2*time.Second, 0.5, went[2]-went[1])
		}
		own := errors.New("own")
		api := play(status(500))
		client := NewClient(over(api))
		client.PrepareRetry = func(*http.Request) error { return own }
		_, err := get(t, client)
		require.ErrorIs(t, err, own)
		require.Len(t, api.bodies, 1)
		api.closed(t)
	})
	bubble(t, "A response handler is called once, with the last response, and its error is returned", func(t *testing.T) {
		own := errors.New("own")
		for _, c := range []struct {
			steps []step
			err   error
			calls int
		}{
			{[]step{status(200)}, nil, 1},
			{[]step{status(200)}, own, 1},
			{[]step{status(503), status(200)}, own, 2},
			{[]step{status(429, "Retry-After", "3600")}, nil, 1},
		} {
			api := play(c.steps...)
			req := must(retryablehttp.NewRequest(http.MethodGet, address, nil))
			handled := 0
			req.SetResponseHandler(func(resp *http.Response) error {
				handled++
				return errors.Join(c.err, resp.Body.Close())
			})
			_, err := Config{MaxWait: 30 * time.Second}.NewClient(over(api)).Do(req)
			require.Equal(t, 1, handled)
			require.Len(t, api.went(), c.calls)
			require.ErrorIs(t, err, c.err)
		}
	})
}

// Requests have attempts of their own, and connections that others share.
func TestRetries_CountEachRequest(t *testing.T) {
	bubble(t, "A request that is sent a second time has all its attempts, in the same context", func(t *testing.T) {
		client := once(over(play(reset, status(200), reset, status(200))))
		req := must(retryablehttp.FromRequest(requestWith(t, http.MethodGet, "none")))
		for range 2 {
			must(do(client, req))
		}
		require.Equal(t, t.Context(), req.Context().(*retried).Context, "the context has grown")
	})
	bubble(t, "A request within another one's attempt has attempts of its own", func(t *testing.T) {
		inner, api := once(over(play(reset, status(200)))), play(reset, status(200))
		answered(t, 200, once(over(base(func(req *http.Request) (*http.Response, error) {
			if _, err := getIn(req.Context(), t, inner); err != nil {
				return nil, err
			}
			return api.RoundTrip(req)
		}))))
		require.Len(t, api.said, 2)
	})
	bubble(t, "Many goroutines may send one request at the same time", func(t *testing.T) {
		api := play(status(429, "Retry-After", "1"), reset, status(200))
		client := NewClient(over(api)).StandardClient()
		req := requestWith(t, http.MethodGet, "none")
		all(t, 20, func(int) {
			resp := must(client.Do(req))
			_ = resp.Body.Close()
		})
		require.Len(t, api.said, 22)
	})
	bubble(t, "A request that is given up does not close the idle connections of others", func(t *testing.T) {
		b := &idle{RoundTripper: play(reset)}
		_, err := get(t, NewClient(over(b)))
		require.Error(t, err)
		require.Zero(t, b.closed)
	})
}

// once returns a client that makes one retry.
func once(t *transport.Transport) *retryablehttp.Client {
	client := NewClient(t)
	client.RetryMax = 1
	return client
}

// idle counts how often its idle connections were closed.
type idle struct {
	http.RoundTripper
	closed int
}

func (i *idle) CloseIdleConnections() { i.closed++ }

// Over a real network the client sends only again what was refused, and uses the connection again.
func TestConnections_AreUsedAgain(t *testing.T) {
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
	whole(t, must(client.Post(server.URL, "text/plain", strings.NewReader("text"))), "text")
	require.Equal(t, 3, calls)
	require.Equal(t, remotes[0], remotes[1], "the page of 40 KiB was not drained")
	require.Equal(t, remotes[0], remotes[2])
}
