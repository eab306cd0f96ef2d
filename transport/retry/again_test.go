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
		own, err := retryablehttp.FromRequest(req)
		if err != nil {
			return nil, err
		}
		return c.Do(own)
	},
	"StandardClient": func(c *retryablehttp.Client, req *http.Request) (*http.Response, error) {
		return c.StandardClient().Do(req)
	},
}

func TestAgain_UnsafeRequestsOnlyIfNotCarriedOut(t *testing.T) {
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
			for _, body := range []string{"none", "replayable", "once"} {
				for name, send := range ways {
					synctest.Test(t, func(t *testing.T) {
						api := play(c.answer, status(200))
						req := requestWith(t, r.method, body)
						if r.header != "" {
							req.Header.Set(r.header, "key")
						}
						resp, err := send(Config{Safe: r.safe}.NewClient(over(api)), req)
						again := r.again || !c.reach
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

func TestALimitersRefusalMayBeFollowedByAnyMethod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, body := range []string{"none", "replayable", "once"} {
			for name, send := range ways {
				api := play(status(200))
				full := &outbound.ThrottledError{Key: "api", RetryAfter: time.Second}
				client := NewClient(&transport.Transport{Base: api, Limiter: &refusing{errs: []error{full}}})
				_, err := send(client, requestWith(t, "POST", body))
				require.NoError(t, err, "%s, %s", body, name)
				require.Equal(t, body != "none", api.said[0] == "text")
			}
		}
	})
}

// A hop of a redirect is a request of its own: what precedes it is not sent again.
func TestEachHopIsSentAgainByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, later := range []step{status(429, "Retry-After", "1"), dial, reset, status(500)} {
			for _, method := range []string{"POST", "GET"} {
				api, admitted := play(status(303, "Location", "/result"), later, status(200)), 0
				limiter := count(&admitted, bucket(t, outbound.PerSecond(10)))
				client := NewClient(&transport.Transport{Base: api, Limiter: limiter}).StandardClient()
				resp, err := client.Do(requestWith(t, method, "replayable"))
				require.NoError(t, err)
				require.Equal(t, 200, resp.StatusCode)
				require.Equal(t, []string{"text", "", ""}, api.said)
				require.Equal(t, 3, admitted, "each hop pays")
			}
		}
	})
}

func TestAHopKeepsItsBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(307, "Location", "/b"), status(308, "Location", "/c"), status(429, "Retry-After", "1"), status(200))
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		client := NewClient(&transport.Transport{Base: api, Limiter: b}).StandardClient()
		resp, err := client.Do(requestWith(t, "PUT", "replayable"))
		require.NoError(t, err)
		require.Equal(t, 200, resp.StatusCode)
		require.Equal(t, []string{"text", "text", "text", "text"}, api.said)
	})
}

func TestTheClientItselfReturnsARedirect(t *testing.T) {
	resp, err := get(t, NewClient(over(play(status(302, "Location", "/b")))))
	require.NoError(t, err)
	require.Equal(t, 302, resp.StatusCode)
}

func TestTooManyRedirectsAreNotSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(302, "Location", "/again"))
		_, err := NewClient(over(api)).StandardClient().Get(address)
		require.ErrorContains(t, err, "stopped after 10 redirects")
		require.Len(t, api.said, 10)
		for _, body := range api.bodies {
			require.EqualValues(t, 1, body.closed.Load())
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
			default:
				require.NoError(t, err)
			}
		}
	})
}
