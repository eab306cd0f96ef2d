package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// minute is a limiter that admits each call after a minute.
type minute struct{}

func (minute) Acquire(ctx context.Context, _ outbound.Cost) (outbound.Permit, error) {
	select {
	case <-time.After(time.Minute):
		return outbound.Permit{}, nil
	case <-ctx.Done():
		return outbound.Permit{}, ctx.Err()
	}
}

// slowBody sends a byte each second, until its request's context ends.
type slowBody struct {
	ctx  context.Context
	left int
}

func (b *slowBody) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, io.EOF
	}
	select {
	case <-time.After(time.Second):
		b.left--
		p[0] = 'x'
		return 1, nil
	case <-b.ctx.Done():
		return 0, b.ctx.Err()
	}
}

func (b *slowBody) Close() error { return nil }

// Timeout counts from the admission, so that a wait for the limiter is not part of it.
func TestTransport_TimeoutStartsAtAdmission(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			name         string
			head         time.Duration // until the response's headers
			body         int           // seconds until the body's end
			headErr, all error
			took         time.Duration
		}{
			{"in time", 5 * time.Second, 4, nil, nil, 69 * time.Second},
			{"the headers are late", time.Hour, 0, ErrTimeout, nil, 70 * time.Second},
			{"the body is late", 5 * time.Second, 6, nil, ErrTimeout, 70 * time.Second},
		} {
			var sent context.Context
			rt := &Transport{Timeout: 10 * time.Second, Limiter: minute{}, Base: base(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				select {
				case <-time.After(c.head):
					return &http.Response{StatusCode: 200, ContentLength: -1, Body: &slowBody{req.Context(), c.body}, Request: req}, nil
				case <-req.Context().Done():
					return nil, req.Context().Err()
				}
			})}
			begin := time.Now()
			req := newRequest(t, nil)
			resp, err := rt.RoundTrip(req)
			if err != c.headErr {
				t.Errorf("%s: RoundTrip returned %v, want %v", c.name, err, c.headErr)
			}
			if resp != nil {
				if resp.Request != req {
					t.Errorf("%s: the response is of another request", c.name)
				}
				if _, err := io.ReadAll(resp.Body); err != c.all {
					t.Errorf("%s: the body ended with %v, want %v", c.name, err, c.all)
				}
				_ = resp.Body.Close()
			}
			if took := time.Since(begin); took != c.took {
				t.Errorf("%s: it took %v, want %v", c.name, took, c.took)
			}
			synctest.Wait()
			if sent.Err() == nil {
				t.Errorf("%s: the context of the request outlives it", c.name)
			}
		}
	})
}

// The error of a timeout is a deadline's, a network timeout, and no rate limit.
func TestTransport_TimeoutIsTypedError(t *testing.T) {
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		select {
		case <-req.Context().Done():
		case <-release:
		}
	}))
	defer server.Close()
	defer close(release)
	client := http.Client{Transport: &Transport{Timeout: 20 * time.Millisecond, Base: server.Client().Transport}}
	_, err := client.Get(server.URL)
	var timeout net.Error
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v, want ErrTimeout, DeadlineExceeded and a net.Error", err)
	}
	if errors.Is(err, outbound.ErrThrottled) {
		t.Errorf("%v counts as rate limited", err)
	}
}

// A caller that cancels, or closes the body early, meets no timeout, and a connection that has
// switched protocols outlives it.
func TestTransport_TimeoutLeavesOtherEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		stalled := base(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})
		time.AfterFunc(time.Second, cancel)
		if _, err := (&Transport{Timeout: time.Minute, Base: stalled}).RoundTrip(newRequest(t, nil).WithContext(ctx)); err != context.Canceled {
			t.Errorf("a cancelled request: %v", err)
		}
		var sent context.Context
		answers := func(status int) *Transport {
			return &Transport{Timeout: time.Minute, Base: base(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				return &http.Response{StatusCode: status, Body: io.NopCloser(strings.NewReader("text")), Request: req}, nil
			})}
		}
		resp, err := answers(200).RoundTrip(newRequest(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		if _ = resp.Body.Close(); sent.Err() == nil {
			t.Error("a closed body leaves the context of its request behind")
		}
		if _, err = answers(http.StatusSwitchingProtocols).RoundTrip(newRequest(t, nil)); err != nil {
			t.Fatal(err)
		}
		if time.Sleep(time.Hour); sent.Err() != nil {
			t.Errorf("a switched connection ended with %v", sent.Err())
		}
		if _, err = answers(http.StatusNoContent).RoundTrip(newRequest(t, nil)); err != nil || sent.Err() == nil {
			t.Errorf("a response without a body: %v, and its context is open: %v", err, sent.Err() == nil)
		}
	})
}

// A connection that has switched protocols outlives the Timeout, and leaves no context behind when it is closed.
func TestTransport_TimeoutEndsWithASwitchedConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent context.Context
		d := &duplex{counted: newBody("hello")}
		resp, err := (&Transport{Timeout: time.Minute, Base: base(func(req *http.Request) (*http.Response, error) {
			sent = req.Context()
			return answer(101, d)(req)
		})}).RoundTrip(newRequest(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok || sent.Err() != nil {
			t.Fatalf("a %T, whose context ended with %v", resp.Body, sent.Err())
		}
		if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil || !d.half || sent.Err() != nil {
			t.Errorf("CloseWrite: %v, and the context ended with %v", err, sent.Err())
		}
		if err := conn.Close(); err != nil || sent.Err() == nil {
			t.Errorf("Close: %v, and the context is open: %v", err, sent.Err() == nil)
		}
	})
}

// A Base that panics leaves no timer and no context behind.
func TestTransport_TimeoutEndsAfterPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent context.Context
		func() {
			defer func() { _ = recover() }()
			_, _ = (&Transport{Timeout: time.Minute, Base: base(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				panic("base")
			})}).RoundTrip(newRequest(t, nil))
		}()
		if sent == nil || sent.Err() == nil {
			t.Error("the context of the request outlives the panic")
		}
	})
}

// A body that its caller forgets keeps its place among the calls in flight until the timeout.
func TestTransport_TimeoutFreesForgottenCallInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1000), outbound.InFlight(1)))
		rt := &Transport{Timeout: 10 * time.Second, Limiter: b, Base: base(func(req *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, ContentLength: -1, Body: &slowBody{req.Context(), 100}, Request: req}, nil
		})}
		if _, err := rt.RoundTrip(newRequest(t, nil)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(9 * time.Second)
		if _, err := b.Acquire(t.Context(), outbound.Cost{1}); !errors.Is(err, outbound.ErrThrottled) {
			t.Errorf("before the timeout: %v, want a refusal", err)
		}
		time.Sleep(2 * time.Second)
		p, err := b.Acquire(t.Context(), outbound.Cost{1})
		if err != nil {
			t.Errorf("after the timeout: %v", err)
		}
		p.Done()
	})
}
