package retry

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"
)

// A client of NewClient keeps what retryablehttp promises of its own.

func TestEachMethodOfTheClientIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			call func(*retryablehttp.Client) (*http.Response, error)
			body string
		}{
			"Get":  {func(c *retryablehttp.Client) (*http.Response, error) { return c.Get(address) }, ""},
			"Head": {func(c *retryablehttp.Client) (*http.Response, error) { return c.Head(address) }, ""},
			"Post": {func(c *retryablehttp.Client) (*http.Response, error) {
				return c.Post(address, "text/plain", strings.NewReader("text"))
			}, "text"},
			"Post of a Buffer": {func(c *retryablehttp.Client) (*http.Response, error) {
				return c.Post(address, "text/plain", bytes.NewBufferString("text"))
			}, "text"},
			"PostForm": {func(c *retryablehttp.Client) (*http.Response, error) {
				return c.PostForm(address, url.Values{"a": {"1"}})
			}, "a=1"},
		} {
			api := play(status(429, "Retry-After", "1"), status(429), status(200))
			resp, err := c.call(NewClient(over(api)))
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode, name)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, []string{c.body, c.body, c.body}, api.said, name)
		}
	})
}

func TestARedirectThatKeepsTheMethodKeepsTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for code, want := range map[int]string{307: "text", 308: "text", 302: "", 303: ""} {
			api := play(status(429), status(code, "Location", "/b"), status(429), status(200))
			var methods []string
			client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
				methods = append(methods, req.Method)
				return api.RoundTrip(req)
			}))).StandardClient()
			resp, err := client.Do(requestWith(t, http.MethodPut, "replayable"))
			require.NoError(t, err, code)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, []string{"text", "text", want, want}, api.said, code)
			if want == "" {
				require.Equal(t, []string{"PUT", "PUT", "GET", "GET"}, methods, code)
			}
		}
	})
}

// What a PrepareRetry writes into the request, such as a signature, goes out.
func TestAPrepareRetryChangesTheNextAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var signed []string
		client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			signed = append(signed, req.Header.Get("Signature"))
			return nil, reset.err
		})))
		n := 0
		client.PrepareRetry = func(req *http.Request) error {
			n++
			req.Header.Set("Signature", fmt.Sprint(n))
			return nil
		}
		_, err := get(t, client)
		require.Error(t, err)
		require.Equal(t, []string{"", "1", "2", "3", "4"}, signed)
	})
}

func TestACustomBackoffChoosesThePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(500), status(200))
		client := NewClient(over(api))
		client.Backoff = func(least, most time.Duration, n int, resp *http.Response) time.Duration {
			require.Equal(t, []any{time.Second, 30 * time.Second, 0, 500}, []any{least, most, n, resp.StatusCode})
			return time.Minute
		}
		_, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, time.Minute, api.went()[1])
	})
}

func TestACustomErrorHandlerHasTheLastWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{reset, status(500), status(429, "Retry-After", "1")} {
			api := play(what)
			client := NewClient(over(api))
			var tries int
			client.ErrorHandler = func(resp *http.Response, err error, n int) (*http.Response, error) {
				tries = n
				require.Equal(t, what.err == nil, resp != nil)
				require.ErrorIs(t, err, what.err)
				return &http.Response{StatusCode: 299, Body: http.NoBody}, nil
			}
			resp, err := get(t, client)
			require.NoError(t, err)
			require.Equal(t, 299, resp.StatusCode)
			require.Equal(t, len(api.went()), tries)
		}
	})
}

func TestAContextThatIsOverSendsNothing(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, limiter := range limiters(t) {
		if name == "nil" || strings.Contains(name, "Unlimited") { // Base decides here
			continue
		}
		api := play(status(200))
		rt := over(api)
		rt.Limiter = limiter
		req, err := retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		require.NoError(t, err)
		_, err = do(NewClient(rt), req)
		require.ErrorIs(t, err, context.Canceled, name)
		require.Empty(t, api.went(), name)
	}
}

// lines is a Logger.
type lines []string

func (l *lines) Printf(format string, args ...any) { *l = append(*l, fmt.Sprintf(format, args...)) }

func TestALoggerHearsOfEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lines
		client := NewClient(over(play(status(500), reset, status(200))))
		client.Logger = &log
		hooked := 0
		client.ResponseLogHook = func(l retryablehttp.Logger, _ *http.Response) {
			hooked++
			require.NotNil(t, l)
		}
		_, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, 2, hooked)
		text := strings.Join(log, "\n")
		require.Equal(t, 2, strings.Count(text, "retrying in"), text)
		require.Equal(t, 1, strings.Count(text, "[ERR]"), text)
	})
}
