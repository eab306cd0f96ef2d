package retry

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/xrate"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

const address = "https://user:secret@api.example.com/items?token=canary"

// base is an http.RoundTripper that is a function.
type base func(*http.Request) (*http.Response, error)

func (b base) RoundTrip(req *http.Request) (*http.Response, error) { return b(req) }

// step is how a script answers one request: with an error, or a status and headers.
type step struct {
	err    error
	status int
	header http.Header
}

func status(code int, header ...string) step {
	h := http.Header{}
	for i := 0; i < len(header); i += 2 {
		h.Add(header[i], header[i+1])
	}
	return step{status: code, header: h}
}

func (s step) response(req *http.Request, body io.ReadCloser) *http.Response {
	return &http.Response{StatusCode: s.status, Header: s.header, Body: body, Request: req}
}

var (
	dial  = step{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
	reset = step{err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}}
	calm  = step{err: errors.New("stream error: stream ID 47; ENHANCE_YOUR_CALM; received from peer")} // net/http's text
)

// script is a Base that answers one request after the other, and all others with the last step. It
// reads and closes the requests' bodies, and records what it saw.
type script struct {
	steps []step

	mu     sync.Mutex
	at     []time.Time
	said   []string   // the content of the requests' bodies
	bodies []*counted // of the responses
	start  time.Time
}

func play(steps ...step) *script { return &script{steps: steps, start: time.Now()} }

func (s *script) RoundTrip(req *http.Request) (*http.Response, error) {
	text := ""
	if req.Body != nil {
		b, _ := io.ReadAll(req.Body)
		text = string(b)
		_ = req.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.steps[min(len(s.at), len(s.steps)-1)]
	s.at = append(s.at, time.Now())
	s.said = append(s.said, text)
	if next.err != nil {
		return nil, next.err
	}
	s.bodies = append(s.bodies, newBody(http.StatusText(next.status)))
	return next.response(req, s.bodies[len(s.bodies)-1]), nil
}

// closed asserts that each response was closed once.
func (s *script) closed(t testing.TB, what ...any) {
	t.Helper()
	for _, body := range s.bodies {
		require.EqualValues(t, 1, body.closed.Load(), what...)
	}
}

// went returns when the requests arrived, from the start.
func (s *script) went() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []time.Duration
	for _, at := range s.at {
		all = append(all, at.Sub(s.start))
	}
	return all
}

// counted is a body that counts how often it was closed, and how much was read. It closes its Reader if that can be closed.
type counted struct {
	io.Reader
	closed, read atomic.Int32
}

func newBody(text string) *counted { return &counted{Reader: strings.NewReader(text)} }

func (b *counted) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read.Add(int32(n))
	return n, err
}

func (b *counted) Close() error {
	b.closed.Add(1)
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// refusing is a limiter that returns these errors, one after the other, and then admits every
// call. A nil error admits one.
type refusing struct {
	errs  []error
	asked atomic.Int32
}

func (l *refusing) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	n := int(l.asked.Add(1))
	if n <= len(l.errs) {
		return outbound.Permit{}, l.errs[n-1]
	}
	return outbound.Permit{}, nil
}

func repeat(err error, n int) []error { return slices.Repeat([]error{err}, n) }

// limiterFunc is a limiter that is a function.
type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	return must(outbound.NewBucket("api", limits...))
}

// within returns a context that ends after d, or the test's own if d is zero.
func within(t testing.TB, d time.Duration) context.Context {
	if d == 0 {
		return t.Context()
	}
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// get sends a request with the client, and reads and closes the response.
func get(t testing.TB, client *retryablehttp.Client) (*http.Response, error) {
	return getIn(t.Context(), t, client)
}

// answered is get for a request that gets a response of this status.
func answered(t testing.TB, want int, client *retryablehttp.Client, what ...any) *http.Response {
	t.Helper()
	resp, err := get(t, client)
	require.NoError(t, err, what...)
	require.Equal(t, want, resp.StatusCode, what...)
	return resp
}

// paced is a client over a transport that asks the limiter for each attempt.
func paced(maxWait time.Duration, api http.RoundTripper, l outbound.Limiter) *retryablehttp.Client {
	return Config{MaxWait: maxWait}.NewClient(&transport.Transport{Base: api, Limiter: l})
}

// full is a limiter's refusal for a time.
func full(wait time.Duration) error { return &outbound.ThrottledError{Key: "api", RetryAfter: wait} }

// levelOf returns the level of a bucket's limit.
func levelOf(t testing.TB, b *outbound.Bucket) float64 {
	return must(b.State(t.Context())).Level
}

// bubble runs a scenario in fake time. Its name says what holds.
func bubble(t *testing.T, name string, scenario func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, scenario) })
}

func getIn(ctx context.Context, t testing.TB, client *retryablehttp.Client) (*http.Response, error) {
	return do(client, must(retryablehttp.NewRequestWithContext(ctx, http.MethodGet, address, nil)))
}

func do(client *retryablehttp.Client, req *retryablehttp.Request) (*http.Response, error) {
	resp, err := client.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return resp, err
}

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

// requestWith returns a request whose body is "none", "replayable" or "once".
func requestWith(t *testing.T, method, body string) *http.Request {
	text := map[string]io.Reader{"replayable": strings.NewReader("text"), "once": newBody("text")}[body]
	return must(http.NewRequestWithContext(t.Context(), method, address, text))
}

// wide is a limit that never refuses.
var wide = outbound.Limit{Capacity: 1e6, LeakRate: 1e6}

// limiters are all kinds of limiters that admit immediately, whether or not they hold when the
// API has refused a call.
func limiters(t *testing.T) map[string]outbound.Limiter {
	never := func(context.Context, outbound.Event) {}
	keyed := &outbound.Keyed[string]{New: func(string) (outbound.Limiter, error) { return bucket(t, wide), nil }}
	return map[string]outbound.Limiter{
		"nil":                nil,
		"Unlimited":          outbound.Unlimited{},
		"x/time":             &xrate.Limiter{Rate: rate.NewLimiter(1e6, 1e6)},
		"bucket":             bucket(t, wide),
		"two limits":         bucket(t, wide, outbound.Limit{Capacity: 1e6, LeakRate: 1e6, Name: "other"}),
		"queue":              queue.New(bucket(t, wide), queue.Config{}),
		"observed queue":     outbound.Observe(queue.New(bucket(t, wide), queue.Config{}), "", never),
		"observed Unlimited": outbound.Observe(outbound.Unlimited{}, "", never),
		"keyed":              keyed.For("key"),
	}
}

// over returns a transport without a limiter.
func over(b http.RoundTripper) *transport.Transport { return &transport.Transport{Base: b} }

// throttled returns the ThrottledError in err.
func throttled(t testing.TB, err error) *outbound.ThrottledError {
	t.Helper()
	var full *outbound.ThrottledError
	require.ErrorAs(t, err, &full)
	return full
}

// ended returns the Error in err.
func ended(t testing.TB, err error) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	return e
}

// about asserts that d is want, or up to a share more, and a nanosecond for
// retryablehttp's timer.
func about(t testing.TB, want time.Duration, share float64, d time.Duration) {
	t.Helper()
	require.GreaterOrEqual(t, d, want)
	require.LessOrEqual(t, d, want+time.Duration(float64(want)*share)+1)
}

// all runs n workers at the same time and waits for them.
func all(t testing.TB, n int, work func(i int)) {
	t.Helper()
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { work(i) })
	}
	group.Wait()
}

// count counts the calls that a limiter admits and that do not return their cost.
func count(n *int, l outbound.Limiter) outbound.Limiter {
	var mu sync.Mutex
	return outbound.Observe(l, "", func(_ context.Context, e outbound.Event) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case e.Kind == outbound.EventAdmitted:
			*n++
		case e.Kind == outbound.EventSettled && e.Used == outbound.Cost{}:
			*n--
		}
	})
}
