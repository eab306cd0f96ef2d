package retry

import (
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// ways are the two ways to send a request: by the client itself, and through an http.Client.
var ways = map[string]func(*retryablehttp.Client, *http.Request) (*http.Response, error){
	"Client": func(c *retryablehttp.Client, req *http.Request) (*http.Response, error) {
		return c.Do(&retryablehttp.Request{Request: req})
	},
	"RoundTripper": func(c *retryablehttp.Client, req *http.Request) (*http.Response, error) {
		return (&http.Client{Transport: &RoundTripper{Client: c}}).Do(req)
	},
}

func TestARequestThatTheAPIMayHaveCarriedOutGoesAgainOnlyIfThatIsSafe(t *testing.T) {
	limited := step{err: &outbound.ThrottledError{Key: "below", RetryAfter: time.Second}}
	proxy := step{err: &net.OpError{Op: "proxyconnect", Err: dial.err}}
	for _, c := range []struct {
		name   string
		answer step
		reach  bool // the API may have carried it out
	}{
		{"429", status(429, "Retry-After", "1"), false},
		{"429 without a time", status(429), false},
		{"dial", dial, false},
		{"dial to a proxy", proxy, false},
		{"limiter below", limited, false},
		{"503 with a time", status(503, "Retry-After", "1"), true},
		{"503", status(503), true},
		{"500", status(500), true},
		{"reset", reset, true},
		{"other error", step{err: io.ErrUnexpectedEOF}, true},
	} {
		for _, r := range []struct {
			method, header string
			safe           func(*http.Request) bool
			again          bool // all the same
		}{
			{method: "", again: true},
			{method: "GET", again: true},
			{method: "HEAD", again: true},
			{method: "OPTIONS", again: true},
			{method: "TRACE", again: true},
			{method: "PUT", again: true},
			{method: "DELETE", again: true},
			{method: "POST"},
			{method: "PATCH"},
			{method: "CONNECT"},
			{method: "get"}, // not the same method as GET
			{method: "POST", header: "Idempotency-Key", again: true},
			{method: "PATCH", header: "X-Idempotency-Key", again: true},
			{method: "POST", header: "X-Other"},
			{method: "POST", safe: func(req *http.Request) bool { return req.URL.Path == "/items" }, again: true},
			{method: "POST", safe: func(req *http.Request) bool { return req.URL.Path == "/others" }},
			{method: "GET", safe: func(*http.Request) bool { panic("asked about a GET") }, again: true},
		} {
			for body, replay := range map[string]bool{"none": true, "replayable": true, "once": false} {
				for name, send := range ways {
					synctest.Test(t, func(t *testing.T) {
						api := play(c.answer, status(200))
						req := requestWith(t, r.method, body)
						if r.header != "" {
							req.Header.Set(r.header, "key")
						}
						resp, err := send(Config{Safe: r.safe}.NewClient(over(api)), req)
						again := replay && (r.again || !c.reach)
						what := strings.Join([]string{c.name, r.method, r.header, body, name}, ", ")
						switch {
						case again:
							require.NoError(t, err, what)
							require.Equal(t, 200, resp.StatusCode, what)
							require.Len(t, api.said, 2, what)
							require.Equal(t, api.said[0], api.said[1], what)
						case c.answer.err != nil:
							require.ErrorIs(t, err, c.answer.err, what)
							require.Equal(t, 1, ended(t, err).Attempts, what)
							require.Len(t, api.said, 1, what)
							require.Zero(t, time.Since(api.start), what)
						default: // the caller gets the response unread
							require.NoError(t, err, what)
							require.Equal(t, c.answer.status, resp.StatusCode, what)
							require.Len(t, api.said, 1, what)
							require.Zero(t, api.bodies[0].closed.Load()+api.bodies[0].read.Load(), what)
						}
						if body != "none" {
							require.Equal(t, "text", api.said[0], what)
						}
					})
				}
			}
		}
	}
}

func requestWith(t *testing.T, method, body string) *http.Request {
	var text io.Reader
	switch body {
	case "replayable":
		text = strings.NewReader("text")
	case "once":
		text = newBody("text")
	}
	req, err := http.NewRequestWithContext(t.Context(), method, address, text)
	require.NoError(t, err)
	if body == "none" {
		require.Nil(t, req.GetBody)
	}
	return req
}

func TestALimitersRefusalMayBeFollowedByAnyMethodIfTheBodyCanBeReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for body, again := range map[string]bool{"none": true, "replayable": true, "once": false} {
			for name, send := range ways {
				api := play(status(200))
				limiter := &refusing{errs: []error{&outbound.ThrottledError{Key: "api", RetryAfter: time.Second}}}
				_, err := send(NewClient(&transport.Transport{Base: api, Limiter: limiter}), requestWith(t, "POST", body))
				if !again {
					require.Equal(t, time.Second, throttled(t, err).RetryAfter)
					require.EqualValues(t, 1, limiter.asked.Load())
					continue
				}
				require.NoError(t, err, "%s, %s", body, name)
				require.Equal(t, body == "replayable", api.said[0] == "text")
			}
		}
	})
}

// The API has carried a POST out that it answers by a redirect, whatever it answers to the
// next hop.
func TestARefusalOfALaterHopDoesNotRepeatAPost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, later := range []step{status(429, "Retry-After", "1"), dial, reset, status(500)} {
			for method, again := range map[string]bool{"POST": false, "GET": true} {
				api := play(status(303, "Location", "/result"), later, status(303, "Location", "/result"), status(200))
				req, err := retryablehttp.NewRequest(method, address, []byte("text"))
				require.NoError(t, err)
				resp, err := NewClient(over(api)).Do(req)
				if again {
					require.NoError(t, err)
					require.Equal(t, 200, resp.StatusCode)
					require.Len(t, api.said, 4, "the whole chain once more")
					continue
				}
				require.Len(t, api.said, 2)
				if later.err != nil {
					require.ErrorIs(t, err, later.err)
				} else {
					require.NoError(t, err)
					require.Equal(t, later.status, resp.StatusCode)
				}
			}
		}
	})
}

func TestEachHopOfARedirectPays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, send := range ways {
			api := play(status(307, "Location", "/b"), status(308, "Location", "/c"), status(429, "Retry-After", "1"), status(200))
			admitted := 0
			limiter := count(&admitted, bucket(t, outbound.PerSecond(10)))
			resp, err := send(NewClient(&transport.Transport{Base: api, Limiter: limiter}), requestWith(t, "PUT", "replayable"))
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode, name)
			require.Equal(t, []string{"text", "text", "text", "text"}, api.said, name)
			require.Equal(t, 4, admitted, name)
		}
	})
}

// If the chain began anew each time, no hop but the first would ever go.
func TestALaterHopWaitsForTheLimiterByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, send := range ways {
			api := play(status(307, "Location", "/b"), status(308, "Location", "/c"), status(200))
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
			resp, err := send(NewClient(&transport.Transport{Base: api, Limiter: b}), requestWith(t, "POST", "replayable"))
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode)
			require.Equal(t, []string{"text", "text", "text"}, api.said)
			about(t, 2*time.Second, 0.1, api.went()[2])

			api = play(status(307, "Location", "/b"), status(200))
			b = bucket(t, outbound.PerHour(1))
			_, err = send(Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: b}), requestWith(t, "POST", "replayable"))
			require.Greater(t, throttled(t, err).RetryAfter, time.Hour-time.Second)
			require.Len(t, api.said, 1)
			require.Zero(t, time.Since(api.start))
		}
	})
}

// A response that stands for the limiter's refusal changes nothing of that.
func TestALaterHopWaitsByItselfAlsoWithAnOnRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, send := range ways {
			api := play(status(307, "Location", "/b"), status(308, "Location", "/c"), status(200))
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
			var closed []*counted
			client := NewClient(&transport.Transport{Base: api, Limiter: b, OnRefusal: func(req *http.Request, err error) (*http.Response, error) {
				resp, err := transport.TooManyRequests(req, err)
				if err == nil {
					body := newBody("later")
					closed, resp.Body = append(closed, body), body
				}
				return resp, err
			}})
			resp, err := send(client, requestWith(t, "POST", "replayable"))
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode, name)
			require.Equal(t, []string{"text", "text", "text"}, api.said, name)
			require.Len(t, closed, 2, name)
			for _, body := range closed {
				require.EqualValues(t, 1, body.closed.Load(), name)
			}
		}
	})
}

func TestTooManyRedirectsAreNotTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, send := range ways {
			api := play(status(302, "Location", "/again"))
			_, err := send(NewClient(over(api)), requestWith(t, "GET", "none"))
			require.ErrorContains(t, err, "stopped after 10 redirects", name)
			require.Len(t, api.said, 10, name)
			for _, body := range api.bodies {
				require.EqualValues(t, 1, body.closed.Load())
			}
		}
	})
}

func TestTheErrorOfAResponseHandlerIsFinal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
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
			req, err := retryablehttp.NewRequest(http.MethodGet, address, nil)
			require.NoError(t, err)
			handled := 0
			req.SetResponseHandler(func(resp *http.Response) error {
				handled++
				return errors.Join(c.err, resp.Body.Close())
			})
			_, err = Config{MaxWait: 30 * time.Second}.NewClient(over(api)).Do(req)
			require.Equal(t, 1, handled)
			require.Len(t, api.went(), c.calls)
			switch {
			case c.err != nil:
				require.ErrorIs(t, err, own)
			case c.steps[0].status == 429:
				require.Equal(t, time.Hour, throttled(t, err).RetryAfter)
				require.Equal(t, 1, ended(t, err).Throttled)
			default:
				require.NoError(t, err)
			}
		}
	})
}
