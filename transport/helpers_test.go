package transport_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// These tests allocate much and keep little: with the usual setting a fifth of their processor time
// goes to the garbage collector.
func init() { debug.SetGCPercent(400) }

// answer returns a base that reads and closes the request's body, as it must, and replies with this
// response.
func answer(status int, body io.ReadCloser, header ...string) roundTripper {
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

// failing returns a base that fails.
func failing(err error) roundTripper {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// crash is a base that panics.
func crash(*http.Request) (*http.Response, error) { panic("crash") }

// panics calls f and returns what it panicked with.
func panics(f func()) (value any) {
	defer func() { value = recover() }()
	f()
	return nil
}

// bubble runs a scenario in fake time. Its name says what holds.
func bubble(t *testing.T, name string, scenario func(t *testing.T)) {
	t.Run(name, func(t *testing.T) { synctest.Test(t, scenario) })
}

// must returns v. An error, which no test expects, ends the tests with a panic that says it.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// check fails the test if there is an error.
func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// errorIf reports a fault, and the test goes on.
func errorIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Errorf(format, args...)
	}
}

// fatalIf reports a fault, and ends the test.
func fatalIf(t testing.TB, fault bool, format string, args ...any) {
	if fault {
		t.Helper()
		t.Fatalf(format, args...)
	}
}

// equal reports the value that the words name if it is another than want.
func equal[T comparable](t testing.TB, got, want T, words string, args ...any) {
	if got != want {
		t.Helper()
		t.Errorf("%s: %v, want %v", fmt.Sprintf(words, args...), got, want)
	}
}

// between is a round tripper of the program's own around a transport or a pool.
type between struct {
	inside http.RoundTripper
	send   func(inside http.RoundTripper, req *http.Request) (*http.Response, error)
}

func (b between) Unwrap() http.RoundTripper { return b.inside }

func (b between) RoundTrip(req *http.Request) (*http.Response, error) { return b.send(b.inside, req) }

// ignore is an OnResponse that does nothing. With it the transport follows the call to its body's end.
func ignore(*http.Response, *outbound.Permit) {}

// counted is a body that counts how often it was closed. It closes its Reader if that can be closed.
type counted struct {
	io.Reader
	closed atomic.Int32
}

func newBody(text string) *counted { return &counted{Reader: strings.NewReader(text)} }

func (b *counted) Close() error {
	b.closed.Add(1)
	if c, ok := b.Reader.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// recorder is a limiter that admits everything and records what is reported to it.
type recorder struct {
	mu    sync.Mutex
	calls []string
}

func (r *recorder) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
}

// take returns what was recorded since the last time.
func (r *recorder) take() string {
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

// limiterFunc is a limiter that is a function, and so cannot be compared.
type limiterFunc func(context.Context, outbound.Cost) (outbound.Permit, error)

func (f limiterFunc) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	return f(ctx, c)
}

// refusing returns a limiter that admits nothing.
func refusing(err error) limiterFunc {
	return func(context.Context, outbound.Cost) (outbound.Permit, error) { return outbound.Permit{}, err }
}

// waiting returns a limiter that admits each call after a while, as a queue does.
func waiting(d time.Duration) limiterFunc {
	return func(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
		select {
		case <-time.After(d):
			return outbound.Permit{}, nil
		case <-ctx.Done():
			return outbound.Permit{}, ctx.Err()
		}
	}
}

// slow is a limit that hardly leaks, so that its level counts what was charged.
var slow = outbound.Limit{Capacity: 1000, LeakRate: 1e-6}

func bucket(limits ...outbound.Limit) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("api", limits...))
}

// slots returns a bucket of n calls in flight.
func slots(n int) *outbound.Bucket { return bucket(outbound.InFlight(n)) }

// full reports whether the bucket has no capacity for a call.
func full(t *testing.T, b *outbound.Bucket) bool {
	return !must(b.AbleToAccept(t.Context(), outbound.Cost{1}))
}

func stateOf(t *testing.T, b *outbound.Bucket) outbound.State { return must(b.State(t.Context())) }

// wantCharged expects that the bucket's limits have been charged this much.
func wantCharged(t *testing.T, b *outbound.Bucket, want ...float64) {
	t.Helper()
	all := must(b.States(t.Context()))
	for i, want := range want {
		if got := all[i].Level; got < want-1e-3 || got > want+1e-3 {
			t.Errorf("limit %d of %s is charged %v, want %v", i, b.Key(), got, want)
		}
	}
}

func newRequest(t *testing.T, body io.Reader) *http.Request {
	return must(http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.com/search", body))
}

// open sends a request with ctx, and returns the response with its body open.
func open(t *testing.T, ctx context.Context, rt http.RoundTripper) *http.Response {
	return must(rt.RoundTrip(newRequest(t, nil).WithContext(ctx)))
}

// finish reads a response to its end and closes it.
func finish(resp *http.Response) {
	if resp.Body != nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
	}
}

// trip sends a request, and reads and closes the response.
func trip(t *testing.T, rt http.RoundTripper) {
	t.Helper()
	finish(open(t, t.Context(), rt))
}

// get sends a request by an http.Client, and reads and closes the response. A status other than 200
// is an error.
func get(ctx context.Context, rt http.RoundTripper) error {
	status, err := getURL(ctx, rt, "http://api.test/")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return err
}

// fetch is get for a URL, whatever the status is.
func fetch(t *testing.T, rt http.RoundTripper, url string) error {
	_, err := getURL(t.Context(), rt, url)
	return err
}

func getURL(ctx context.Context, rt http.RoundTripper, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := (&http.Client{Transport: rt}).Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}
