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
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// An SDK makes its own errors of responses, such as *github.RateLimitError.
func TestTheLastResponseComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			what     step
			attempts int
		}{
			{status(429, "Retry-After", "1"), 5},
			{status(429, "Retry-After", "3600", "X-Should-Retry", "true"), 1},
			{status(503), 5},
			{step{status: 503}, 5},
		} {
			api := play(c.what)
			resp, err := Config{MaxWait: 30 * time.Second}.NewClient(over(api)).StandardClient().Do(requestWith(t, http.MethodGet, "none"))
			require.NoError(t, err)
			require.Len(t, api.went(), c.attempts)
			require.Equal(t, c.what.status, resp.StatusCode)
			require.Equal(t, c.what.header.Get("Retry-After"), resp.Header.Get("Retry-After"))
			whole(t, resp, http.StatusText(c.what.status))
			for _, body := range api.bodies {
				require.EqualValues(t, 1, body.closed.Load())
			}
		}
	})
}

// whole asserts that the program can read the response, and closes it.
func whole(t *testing.T, resp *http.Response, want string) {
	t.Helper()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Equal(t, want, string(text))
	require.NoError(t, resp.Body.Close())
}

func TestTheLastResponseTellsAnSDKThatTryingAgainIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &outbound.ThrottledError{Key: "api", RetryAfter: time.Hour}
		for name, c := range map[string]struct {
			rt     *transport.Transport
			status int
			over   bool
		}{
			"refused to the end":        {over(play(status(429, "Retry-After", "1"))), 429, true},
			"refused for too long":      {over(play(status(429, "Retry-After", "3600"))), 429, true},
			"failed to the end":         {over(play(status(500))), 500, true},
			"no room":                   {&transport.Transport{Limiter: &refusing{errs: repeat(full, 9)}, OnRefusal: transport.TooManyRequests}, 429, true},
			"well":                      {over(play(status(200))), 200, false},
			"well in the end":           {over(play(status(429), status(200))), 200, false},
			"a mistake":                 {over(play(status(400))), 400, false},
			"credit that is used up":    {over(play(status(429, "X-From-Cache", "1"))), 429, false},
			"what nobody tries again":   {over(play(status(501))), 501, false},
			"nothing by this transport": {nil, 0, false},
		} {
			resp, err := Config{MaxWait: 30 * time.Second}.NewClient(c.rt).StandardClient().Do(requestWith(t, http.MethodGet, "none"))
			if c.status == 0 {
				require.ErrorIs(t, err, outbound.ErrInvalid)
				continue
			}
			require.NoError(t, err, name)
			require.Equal(t, c.status, resp.StatusCode, name)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, c.over, resp.Header.Get("X-Should-Retry") == "false", name)
		}
	})
}

func TestTheHeaderOfTheLastResponseIsACopy(t *testing.T) {
	what := status(429, "Retry-After", "3600")
	resp, err := Config{MaxWait: 30 * time.Second}.NewClient(over(play(what))).StandardClient().Do(requestWith(t, http.MethodGet, "none"))
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	require.Len(t, what.header, 1, "which may be a cache's")
}

// An SDK of AWS says how often it sends a request. The client leaves it what the API refuses,
// and waits for what the limiter refuses.
func TestRequestsThatTheirSenderSendsAgainAreLeftToIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for header, left := range map[string]bool{
			"attempt=1; max=3":                        true,
			"ttl=20260101T000000Z; attempt=3; max=3":  true,
			"attempt=1;max=10":                        true,
			"attempt=1; max=1":                        false,
			"attempt=1":                               true, // without a bound
			"attempt=2; ttl=20260101T000000Z":         true,
			"ttl=20260101T000000Z":                    false,
			"attempts":                                false,
			"":                                        false,
			"attempt=1; max=":                         false,
			"attempt=1; max=-3":                       false,
			"attempt=1; max=99999999999999999999":     false,
			"attempt=1; maximum=3":                    true,
			"attempt=1; max=three; max=3":             false,
			"max=2":                                   true,
			"attempt=1; max=3; ttl=20260101T000000Z":  true,
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
			// The client does not leave an error to it: the SDK would not know what has
			// failed.
			req := requestWith(t, http.MethodGet, "none")
			req.Header.Set("Amz-Sdk-Request", header)
			api := play(reset)
			_, err := NewClient(over(api)).StandardClient().Do(req)
			require.False(t, ended(t, err).RetryableError())
			require.Len(t, api.went(), 5)
		}
	})
}

// If the client tries nothing again, it does not tell the SDK to stop.
func TestAnSDKThatDoesAllRetriesIsNotStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{status(429, "Retry-After", "1"), status(503)} {
			client := NewClient(over(play(what)))
			client.RetryMax = 0
			resp, err := client.StandardClient().Do(requestWith(t, http.MethodGet, "none"))
			require.NoError(t, err)
			require.Empty(t, resp.Header.Get("X-Should-Retry"))
			require.NoError(t, resp.Body.Close())
		}
	})
}

// queued returns a transport that lets every attempt go out: held ones wait in line.
func queued(t *testing.T, b http.RoundTripper) *transport.Transport {
	return &transport.Transport{Base: b, Limiter: queue.New(bucket(t, wide), queue.Config{})}
}

func TestARetryMaxReturnsTheLastResponseUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, policy := range []retryablehttp.CheckRetry{nil, retryablehttp.DefaultRetryPolicy} {
			for _, what := range []step{status(429, "Retry-After", "1"), status(503)} {
				for name, send := range ways {
					api := play(what)
					client := NewClient(queued(t, api))
					client.RetryMax = 2
					if policy != nil {
						client.CheckRetry = policy
					}
					resp, err := send(client, requestWith(t, http.MethodGet, "none"))
					require.NoError(t, err)
					require.Len(t, api.went(), 3, name)
					require.Equal(t, policy == nil, resp.Header.Get("X-Should-Retry") == "false")
					require.Zero(t, api.bodies[2].closed.Load())
					whole(t, resp, http.StatusText(what.status))
					require.EqualValues(t, 1, api.bodies[2].closed.Load())
				}
			}
		}
	})
}
