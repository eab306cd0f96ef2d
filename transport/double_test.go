package transport

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// base is an http.RoundTripper that is a function.
type base func(*http.Request) (*http.Response, error)

func (b base) RoundTrip(req *http.Request) (*http.Response, error) { return b(req) }

// answer returns a base that reads and closes the request's body, as it must, and answers
// with this response.
func answer(status int, body io.ReadCloser, header ...string) base {
	return func(req *http.Request) (*http.Response, error) {
		if req.Body != nil {
			_, _ = io.Copy(io.Discard, req.Body)
			_ = req.Body.Close()
		}
		h := http.Header{}
		for i := 0; i < len(header); i += 2 {
			h.Add(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Header: h, Body: body, Request: req}, nil
	}
}

// counted is a body that counts how often it was closed.
type counted struct {
	io.Reader
	closed atomic.Int32
}

func newBody(text string) *counted { return &counted{Reader: strings.NewReader(text)} }

func (b *counted) Close() error {
	b.closed.Add(1)
	return nil
}

// recorder is a limiter that admits everything and records what it hears.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

// heard returns what was recorded since the last time.
func (r *recorder) heard() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.calls, ", ")
	r.calls = nil
	return s
}

func (r *recorder) Acquire(_ context.Context, c outbound.Cost) (outbound.Permit, error) {
	r.note("acquire %v", c[0])
	return outbound.NewPermit(r), nil
}

func (r *recorder) Settle(used outbound.Cost) { r.note("settle %v", used[0]) }
func (r *recorder) Done()                     { r.note("done") }

func (r *recorder) Answered(a outbound.Answer) {
	switch a.Kind {
	case "":
		r.note("none")
	case outbound.AnswerRefused:
		r.note("refused %v", a.Wait)
	case outbound.AnswerHold:
		r.note("hold %v", a.Wait)
	case outbound.AnswerRemaining:
		r.note("left %v", a.Remaining)
	}
}

// refusing is a limiter that admits nothing.
type refusing struct{ err error }

func (l refusing) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, l.err
}

// waiting is a limiter that makes every call wait, as a queue does, and refuses a call with
// an earlier deadline at once.
type waiting time.Duration

func (l waiting) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	d := time.Duration(l)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < d {
		return outbound.Permit{}, &outbound.ThrottledError{Key: "queue", RetryAfter: d, Err: context.DeadlineExceeded}
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return outbound.Permit{}, nil
	case <-ctx.Done():
		return outbound.Permit{}, ctx.Err()
	}
}

func newRequest(t *testing.T, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/search", body)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

// trip makes a round trip, and ends it as a careful caller does.
func trip(t *testing.T, rt http.RoundTripper) {
	t.Helper()
	resp, err := rt.RoundTrip(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// panics runs f and returns what it panicked with.
func panics(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}
