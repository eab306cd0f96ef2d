package retry

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-retryablehttp"
	"github.com/stretchr/testify/require"

	"github.com/dripfeed/dripfeed/outbound"
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

var (
	dial  = step{err: &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}}
	reset = step{err: &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}}
)

// script is a Base that answers one request after the other, with the last step for ever. It
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
	body := newBody(http.StatusText(next.status))
	s.bodies = append(s.bodies, body)
	return &http.Response{StatusCode: next.status, Header: next.header, Body: body, Request: req}, nil
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

// counted is a body that counts how often it was closed, and how much was read.
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
	return nil
}

// refusing is a limiter that returns these errors, one after the other, and then admits every
// call.
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

// limiterFunc is a limiter that is a function.
type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

func bucket(t testing.TB, limits ...outbound.Limit) *outbound.Bucket {
	b, err := outbound.NewBucket("api", limits...)
	require.NoError(t, err)
	return b
}

// get calls the client, and reads and closes the response.
func get(t testing.TB, client *retryablehttp.Client) (*http.Response, error) {
	req, err := retryablehttp.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	require.NoError(t, err)
	return do(client, req)
}

func do(client *retryablehttp.Client, req *retryablehttp.Request) (*http.Response, error) {
	resp, err := client.Do(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
	return resp, err
}

// over returns a transport that is not paced.
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

// count counts the calls that a limiter admits and whose units do not come back.
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
