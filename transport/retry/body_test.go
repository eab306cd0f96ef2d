package retry

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

func TestResponsesBetweenAttemptsAreDrainedAndClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for size, read := range map[int]int{0: 0, 100: 100, 4096: 4096, maxDrain: maxDrain, 10 * maxDrain: maxDrain} {
			for _, code := range []int{429, 500} {
				var first *counted
				client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
					if first != nil {
						require.EqualValues(t, 1, first.closed.Load(), "not closed before the next attempt")
						return &http.Response{StatusCode: 200, Body: newBody("ok"), Request: req}, nil
					}
					first = newBody(strings.Repeat("x", size))
					return &http.Response{StatusCode: code, Body: first, Request: req}, nil
				})))
				_, err := get(t, client)
				require.NoError(t, err)
				require.EqualValues(t, 1, first.closed.Load())
				// io.Copy reads whole buffers, a little more than the 4 KiB of retryablehttp
				// and the 64 KiB of this package.
				require.InDelta(t, read, first.read.Load(), 4096)
				require.GreaterOrEqual(t, int(first.read.Load()), read)
			}
		}
	})
}

// stalling is a body that sends some bytes at once, or now and then, and never ends.
type stalling struct {
	*io.PipeReader
	closed atomic.Int32
}

func (s *stalling) Close() error {
	s.closed.Add(1)
	return s.PipeReader.Close()
}

func newStalling(every time.Duration) *stalling {
	r, w := io.Pipe()
	go func() {
		for _, err := io.WriteString(w, "x"); err == nil && every > 0; _, err = io.WriteString(w, "x") {
			time.Sleep(every)
		}
	}()
	return &stalling{PipeReader: r}
}

func TestABodyThatStallsHoldsTheNextAttemptUpForASecondAtMost(t *testing.T) {
	for _, every := range []time.Duration{0, 50 * time.Millisecond} {
		for name, send := range ways {
			synctest.Test(t, func(t *testing.T) {
				first, begin := newStalling(every), time.Now()
				client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
					if first.closed.Load() == 0 && time.Since(begin) == 0 {
						return &http.Response{StatusCode: 500, Body: first, Request: req}, nil
					}
					return &http.Response{StatusCode: 200, Body: newBody("ok"), Request: req}, nil
				})))
				client.RetryWaitMax = time.Second
				resp, err := send(client, requestWith(t, "GET", "none"))
				require.NoError(t, err, name)
				require.Equal(t, 200, resp.StatusCode)
				require.LessOrEqual(t, time.Since(begin), drainFor+3*time.Second/2)
				require.EqualValues(t, 1, first.closed.Load())
				time.Sleep(every) // the writer has to notice that
			})
		}
	}
}

func TestTheResponseOfAnErrorIsClosedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, what := range []step{status(429, "Retry-After", "3600"), status(500), status(503, "Retry-After", "3600")} {
			for name, send := range ways {
				api := play(what)
				resp, err := send(NewClient(over(api)), requestWith(t, "GET", "none"))
				if name == "RoundTripper" {
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				} else {
					require.Error(t, err, name)
					require.Nil(t, resp, name)
				}
				for _, body := range api.bodies {
					require.EqualValues(t, 1, body.closed.Load(), name)
				}
			}
		}
	})
}

func TestARetryMaxEndsWithTheTypedErrorAndAClosedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := play(status(429, "Retry-After", "1"))
		client := NewClient(over(api))
		client.RetryMax = 1
		_, err := get(t, client)
		require.InDelta(t, time.Second, throttled(t, err).RetryAfter, 1)
		for _, body := range api.bodies {
			require.EqualValues(t, 1, body.closed.Load())
		}
	})
}

func TestAPrepareRetryThatFailsEndsWithAClosedResponse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		api := play(status(500))
		client := NewClient(over(api))
		client.PrepareRetry = func(*http.Request) error { return own }
		_, err := get(t, client)
		require.ErrorIs(t, err, own)
		require.Len(t, api.bodies, 1)
		require.EqualValues(t, 1, api.bodies[0].closed.Load())
	})
}

// countedBodies are requests that count every body: the first one and those that GetBody
// made.
type countedBodies struct {
	mu  sync.Mutex
	all []*counted
	err error // of the second GetBody
}

func (c *countedBodies) get() (io.ReadCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil && len(c.all) > 1 {
		return nil, c.err
	}
	b := newBody("text")
	c.all = append(c.all, b)
	return b, nil
}

func (c *countedBodies) request(t *testing.T, replayable bool) *http.Request {
	first, err := c.get()
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, address, first)
	require.NoError(t, err)
	req.ContentLength = 4
	if replayable {
		req.GetBody = c.get
	}
	return req
}

func (c *countedBodies) closedOnce(t *testing.T, what string) {
	for i, b := range c.all {
		n := b.closed.Load()
		if what == "redirected" && i == 0 && n > 1 {
			continue // http.Client closes a body that it has sent a second time
		}
		require.EqualValues(t, 1, n, "%s: body %d of %d", what, i, len(c.all))
	}
}

func TestRequestBodiesAreClosedOnceOnEveryPath(t *testing.T) {
	full := &outbound.ThrottledError{Key: "api", RetryAfter: time.Second}
	hour := &outbound.ThrottledError{Key: "api", RetryAfter: time.Hour}
	for name, c := range map[string]struct {
		limiter    outbound.Limiter
		steps      []step
		replayable bool
		bodies     int
		fails      bool
	}{
		"success":                  {steps: []step{status(200)}, replayable: true, bodies: 1},
		"once, success":            {steps: []step{status(200)}, bodies: 1},
		"second attempt":           {steps: []step{status(429, "Retry-After", "1"), status(200)}, replayable: true, bodies: 3}, // the limiter admits one attempt too early
		"after a reset":            {steps: []step{reset, status(200)}, replayable: true, bodies: 2},
		"once, refused by the API": {steps: []step{status(429), status(200)}, bodies: 1},
		"once, reset":              {steps: []step{reset}, bodies: 1, fails: true},
		"refused by the limiter":   {limiter: &refusing{errs: []error{full}}, steps: []step{status(200)}, replayable: true, bodies: 2},
		"once, by the limiter":     {limiter: &refusing{errs: []error{full}}, steps: []step{status(200)}, bodies: 1, fails: true},
		"too late":                 {limiter: &refusing{errs: []error{full, hour}}, steps: []step{status(200)}, replayable: true, bodies: 2, fails: true},
		"always failing":           {steps: []step{reset}, replayable: true, bodies: 5, fails: true},
		"never":                    {limiter: &refusing{errs: []error{outbound.ErrTooLarge}}, steps: []step{status(200)}, replayable: true, bodies: 1, fails: true},
		"redirected":               {steps: []step{status(307, "Location", "/b"), reset, status(200)}, replayable: true, bodies: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var sent countedBodies
				api := play(c.steps...)
				if r, ok := c.limiter.(*refusing); ok {
					r.asked.Store(0)
				}
				client := &http.Client{Transport: &RoundTripper{Client: Config{MaxWait: 30 * time.Second}.NewClient(&transport.Transport{Base: api, Limiter: c.limiter})}}
				resp, err := client.Do(sent.request(t, c.replayable))
				require.Equal(t, c.fails, err != nil, "%v", err)
				if err == nil {
					require.NoError(t, resp.Body.Close())
				}
				sent.closedOnce(t, name)
				require.Len(t, sent.all, c.bodies)
				for _, said := range api.said {
					require.Equal(t, "text", said)
				}
			})
		})
	}
}

func TestABodyThatCannotBeReadAgainEndsTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		for name, send := range ways {
			sent := countedBodies{err: own}
			api := play(reset)
			resp, err := send(NewClient(over(api)), sent.request(t, true))
			require.ErrorIs(t, err, own, name)
			require.Nil(t, resp)
			require.Len(t, api.said, 2, name)
			sent.closedOnce(t, name)
		}
	})
}

// Whichever policy the client has, the Error has the counts, and the time to come back.
func TestABodyThatCannotBeReadAgainEndsWithWhatCameBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own https://h/?canary")
		for name, send := range ways {
			for _, c := range []struct {
				step step
				want Error
			}{
				{status(429, "Retry-After", "7"), Error{Throttled: 1, StatusCode: 429}},
				{status(503), Error{Failures: 1, StatusCode: 503}},
				{dial, Error{Failures: 1}},
			} {
				for _, replaced := range []bool{false, true} {
					api := play(c.step)
					client := NewClient(over(api))
					if replaced {
						client.CheckRetry = retryablehttp.DefaultRetryPolicy
					}
					req := requestWith(t, http.MethodPut, "replayable")
					req.GetBody = func() (io.ReadCloser, error) { return nil, own }
					resp, err := send(client, req)
					require.Nil(t, resp)
					require.ErrorIs(t, err, own, name)
					require.Equal(t, []string{"text"}, api.said, name)
					if c.want.Throttled > 0 {
						require.Equal(t, 7*time.Second, throttled(t, err).RetryAfter, name)
					}
					e := *ended(t, err)
					require.NotContains(t, e.Error(), "canary")
					c.want.Method, c.want.URL, c.want.Attempts, c.want.Err = "PUT", e.URL, 1, e.Err
					if name == "Client" { // here it is another attempt, which has no response
						c.want.StatusCode = 0
					}
					require.Equal(t, c.want, e, name)
				}
			}
		}
	})
}

// retryablehttp keeps the body that it gets, and sends all of it each time.
func TestBodiesThatRetryablehttpKeepsAreSentWholeEachTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, body := range []any{
			[]byte("text"),
			bytes.NewBufferString("text"),
			bytes.NewReader([]byte("text")),
			strings.NewReader("text"),
			io.LimitReader(strings.NewReader("text more"), 4),
			func() (io.Reader, error) { return strings.NewReader("text"), nil },
		} {
			api := play(reset, status(503), status(429, "Retry-After", "2"), status(200))
			req, err := retryablehttp.NewRequest(http.MethodPut, address, body)
			require.NoError(t, err)
			_, err = do(NewClient(over(api)), req)
			require.NoError(t, err, "%T", body)
			require.Equal(t, []string{"text", "text", "text", "text"}, api.said, "%T", body)
		}
	})
}

func TestAnUpgradedConnectionIsHandedOn(t *testing.T) {
	type conn struct {
		io.Reader
		io.Writer
		io.Closer
	}
	var wrote bytes.Buffer
	client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 101, Body: conn{strings.NewReader("hello"), &wrote, io.NopCloser(nil)}, Request: req}, nil
	})))
	resp, err := (&http.Client{Transport: &RoundTripper{Client: client}}).Get("https://api.example.com/")
	require.NoError(t, err)
	_, err = io.WriteString(resp.Body.(io.Writer), "hi")
	require.NoError(t, err)
	require.Equal(t, "hi", wrote.String())
}

// writer is a body that happens to have a Write method, as one made of a bytes.Buffer has.
type writer struct {
	*counted
	io.Writer
}

// Only the connection of a 101 outlives its request: a long context does not collect what is
// left of all others.
func TestTheRequestOfABodyWithAWriteMethodEndsWithIt(t *testing.T) {
	for status, want := range map[int]error{200: context.Canceled, 101: nil} {
		var sent context.Context
		client := NewClient(over(base(func(req *http.Request) (*http.Response, error) {
			sent = req.Context()
			return &http.Response{StatusCode: status, Body: writer{newBody("text"), io.Discard}, Request: req}, nil
		})))
		resp, err := get(t, client)
		require.NoError(t, err)
		require.Equal(t, status, resp.StatusCode)
		require.ErrorIs(t, sent.Err(), want, "%d", status)
	}
}
