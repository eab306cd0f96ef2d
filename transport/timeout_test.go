package transport_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// Timeout counts from the admission to the end of the body. So a wait for the limiter is not part of
// it. A caller that cancels, or closes the body early, gets no timeout. The request's context ends
// with the body, or when Base panics.
func TestTimeout_StartsAtAdmission(t *testing.T) {
	for _, c := range []struct {
		name         string
		head         time.Duration // until the response's headers
		body         int           // seconds until the body's end
		cancel       time.Duration // when the caller cancels; 0: not
		unread       bool          // the caller closes the body
		headErr, all error
		took         time.Duration
	}{
		{name: "in time", head: 5 * time.Second, body: 4, took: 69 * time.Second},
		{name: "the headers are late", head: time.Hour, headErr: transport.ErrTimeout, took: 70 * time.Second},
		{name: "the body is late", head: 5 * time.Second, body: 6, all: transport.ErrTimeout, took: 70 * time.Second},
		{name: "cancelled", head: time.Hour, cancel: 65 * time.Second, headErr: context.Canceled, took: 65 * time.Second},
		{name: "closed", head: 5 * time.Second, body: 6, unread: true, took: 65 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			var sent context.Context
			rt := &transport.Transport{Timeout: 10 * time.Second, Limiter: waiting(time.Minute), Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				select {
				case <-time.After(c.head):
					var parts []part
					for i := range c.body {
						parts = append(parts, part{time.Duration(i+1) * time.Second, "x"})
					}
					body := newLate(true, parts...) // a byte each second, until the request's context ends
					context.AfterFunc(req.Context(), func() { body.Close() })
					return &http.Response{StatusCode: 200, ContentLength: -1, Body: body, Request: req}, nil
				case <-req.Context().Done():
					return nil, req.Context().Err()
				}
			})}
			begin := time.Now()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if c.cancel > 0 {
				time.AfterFunc(c.cancel, cancel)
			}
			req := newRequest(t, nil).WithContext(ctx)
			resp, err := rt.RoundTrip(req)
			errorIf(t, err != c.headErr || resp != nil && resp.Request != req,
				"%s: RoundTrip returned %v, want %v and a response of the request", c.name, err, c.headErr)
			if resp != nil {
				if !c.unread {
					_, err = io.ReadAll(resp.Body)
				}
				errorIf(t, err != c.all, "%s: the body ended with %v, want %v", c.name, err, c.all)
				_ = resp.Body.Close()
			}
			equal(t, time.Since(begin), c.took, "%s: it took", c.name)
			synctest.Wait()
			errorIf(t, sent.Err() == nil, "%s: the context of the request outlives it", c.name)
			time.Sleep(10 * time.Second) // for the parts of a body that nobody reads
		})
	}
}

// The context that Timeout makes ends with the response, with a panic of Base, or when a connection
// that has switched protocols is closed, which the Timeout does not bound.
func TestTimeout_LeavesNoContextBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var sent context.Context
		through := func(base roundTripper) *transport.Transport {
			return &transport.Transport{Timeout: time.Minute, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				return base(req)
			})}
		}
		if resp := open(t, t.Context(), through(answer(http.StatusNoContent, newBody("")))); sent.Err() == nil {
			t.Errorf("a response %d without a body leaves its context open", resp.StatusCode)
		}
		panics(func() { open(t, t.Context(), through(crash)) })
		errorIf(t, sent.Err() == nil, "the context of the request outlives the panic")
		for _, body := range []io.ReadCloser{newBody("text"), &duplex{counted: newBody("hello")}} {
			resp := open(t, t.Context(), through(answer(http.StatusSwitchingProtocols, body)))
			time.Sleep(time.Hour)
			errorIf(t, sent.Err() != nil, "a switched connection ended with %v", sent.Err())
			if _, ok := body.(io.Writer); resp.Body.Close() != nil || ok && sent.Err() == nil {
				t.Error("a closed connection leaves its context open")
			}
		}
	})
}

// The error of a timeout is a deadline's, a network timeout, and no rate limit.
func TestTimeout_IsTypedError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := fetch(t, &transport.Transport{Timeout: time.Second, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			<-req.Context().Done()
			return nil, req.Context().Err()
		})}, "http://api.test/")
		timeout, ok := errors.AsType[net.Error](err)
		errorIf(t, !errors.Is(err, transport.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !ok || !timeout.Timeout() || errors.Is(err, outbound.ErrThrottled),
			"%v, want ErrTimeout, DeadlineExceeded and a net.Error", err)
	})
}
