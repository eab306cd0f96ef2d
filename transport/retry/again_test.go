package retry

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// The client repeats a request only if its method allows it or the API cannot have carried it out.
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
		{"ENHANCE_YOUR_CALM", calm, true},
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

// Each hop of a redirect is a request of its own, with its own body, attempts and permits.
func TestAgain_EachHopOfARedirect(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		steps  []step
		said   []string
	}{
		"POST, then refused":    {"POST", []step{status(303, "Location", "/b"), status(429, "Retry-After", "1"), status(200)}, []string{"text", "", ""}},
		"POST, then no network": {"POST", []step{status(303, "Location", "/b"), dial, status(200)}, []string{"text", "", ""}},
		"POST, then failed":     {"POST", []step{status(303, "Location", "/b"), reset, status(500), status(200)}, []string{"text", "", "", ""}},
		"302":                   {"PUT", []step{status(429), status(302, "Location", "/b"), status(429), status(200)}, []string{"text", "text", "", ""}},
		"307 and 308": {"PUT", []step{status(307, "Location", "/b"), status(429), status(308, "Location", "/c"), reset, status(200)},
			[]string{"text", "text", "text", "text", "text"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			api, admitted := play(c.steps...), 0
			limiter := count(&admitted, bucket(t, outbound.PerSecond(10)))
			client := NewClient(&transport.Transport{Base: api, Limiter: limiter})
			resp, err := client.StandardClient().Do(requestWith(t, c.method, "replayable"))
			require.NoError(t, err, name)
			require.Equal(t, 200, resp.StatusCode, name)
			require.Equal(t, c.said, api.said, name)
			require.Equal(t, len(c.said), admitted, "%s: each attempt of each hop is charged", name)
		})
	}
	answered(t, 302, NewClient(over(play(status(302, "Location", "/b")))), "the client itself returns a redirect")
}

// keyedRequest returns a request with an Idempotency-Key.
func keyedRequest(t *testing.T, key string) *http.Request {
	req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/items", strings.NewReader("text")))
	req.Header.Set("Idempotency-Key", key)
	return req
}

// A key that an SDK sends again adds no attempts.
func TestIdempotencyKey_IsRemembered(t *testing.T) {
	bubble(t, "A request that was given up is not sent again for 30 s, and takes no permit. The error says why", func(t *testing.T) {
		for _, c := range []struct {
			what step
			text string
		}{
			{status(429, "Retry-After", "2"), "status 429"},
			{status(503), "status 503"},
			{reset, "read tcp: connection reset by peer"},
			{dial, "dial tcp: connection refused"},
		} {
			api, admitted := play(c.what), 0
			client := NewClient(&transport.Transport{Base: api, Limiter: count(&admitted, outbound.Unlimited{})})
			send := func(key string) error {
				resp, err := client.StandardClient().Transport.RoundTrip(keyedRequest(t, key))
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
			require.Equal(t, 5, admitted)
			_ = send("other")
			require.Len(t, api.went(), 10, "another key")
			time.Sleep(time.Nanosecond)
			require.NotErrorIs(t, send("key"), errAgain)
			require.Len(t, api.went(), 15)
		}
	})
	bubble(t, "The client remembers only requests that it has sent several times without success", func(t *testing.T) {
		refused := status(429, "Retry-After", "1")
		for name, c := range map[string]struct {
			max   int
			steps []step
		}{
			"sent once":                  {0, []step{refused}},
			"the time is too long":       {4, []step{status(429, "Retry-After", "3600")}},
			"a success":                  {4, []step{refused, status(200)}},
			"a mistake":                  {1, []step{refused, status(400)}},
			"announced by an SDK of AWS": {4, []step{status(500)}},
		} {
			client := paced(30*time.Second, play(c.steps...), nil)
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
		}
	})
}
