package transport_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// A call ends with its response's body, once.
func TestCall_EndsWithBody(t *testing.T) {
	broken := errors.New("connection reset")
	readAll := func(b io.ReadCloser) {
		text, err := io.ReadAll(b)
		errorIf(t, string(text) != "text" || err != nil, "read %q, %v", text, err)
	}
	for name, c := range map[string]struct {
		body io.ReadCloser
		end  func(io.ReadCloser)
	}{
		"read to the end":   {newBody("text"), readAll},
		"data and EOF once": {io.NopCloser(iotest.DataErrReader(strings.NewReader("text"))), readAll},
		"an error": {io.NopCloser(iotest.ErrReader(broken)), func(b io.ReadCloser) {
			_, err := io.ReadAll(b)
			errorIf(t, err != broken, "read %v", err)
		}},
		"closed unread": {newBody("text"), func(b io.ReadCloser) { b.Close() }},
		"Close panics":  {struct{ io.ReadCloser }{}, func(b io.ReadCloser) { panics(func() { b.Close() }) }},
		// Something below may have made such a body of a file or a buffer: that is no upgrade.
		"can be written to": {&duplex{counted: newBody("text")}, readAll},
	} {
		b := slots(1)
		resp := open(t, t.Context(), &transport.Transport{Base: answer(200, c.body), Limiter: b})
		errorIf(t, !full(t, b), "%s: the call ended with its headers", name)
		c.end(resp.Body)
		errorIf(t, full(t, b), "%s: the call has not ended", name)
		open(t, t.Context(), &transport.Transport{Base: answer(200, newBody("x")), Limiter: b})
		panics(func() { resp.Body.Close() })
		errorIf(t, !full(t, b), "%s: the second Close has ended another call", name)
	}
}

// A response without a body ends its call with the headers, over HTTP/2 as well, where it has a Body.
func TestCall_EndsWithoutBody(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		b := slots(1)
		resp := open(t, t.Context(), &transport.Transport{Base: answer(200, body), Limiter: b})
		errorIf(t, full(t, b) || resp.Body != body, "body %v: full %v, body %v", body, full(t, b), resp.Body)
	}
	for name, http2 := range map[string]bool{"HTTP/1": false, "HTTP/2": true} {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			status, _ := strconv.Atoi(req.URL.Path[1:])
			w.WriteHeader(status)
			if req.URL.RawQuery != "" {
				_, _ = io.WriteString(w, "text")
			}
		}))
		s.EnableHTTP2 = http2
		s.StartTLS()
		for path, c := range map[string]struct {
			method string
			keeps  bool
		}{
			"/204":      {method: "GET"},
			"/304":      {method: "GET"},
			"/200":      {method: "GET"},
			"/200?text": {method: "HEAD"},
			"/500?text": {method: "GET", keeps: true},
		} {
			b := slots(1)
			req := must(http.NewRequestWithContext(t.Context(), c.method, s.URL+path, nil))
			resp := must((&transport.Transport{Base: s.Client().Transport, Limiter: b}).RoundTrip(req))
			if keeps := full(t, b); keeps != c.keeps || resp.Proto[:6] != name {
				t.Errorf("%s: the call of %s %s over %s is in flight until Close: %v", name, c.method, path, resp.Proto, keeps)
			}
			resp.Body.Close()
		}
		s.Close()
	}
}

// The body is wrapped only if the permit ends with it.
func TestCall_WrapsBodyOnlyIfNeeded(t *testing.T) {
	for name, c := range map[string]struct {
		rt      transport.Transport
		wrapped bool
	}{
		"not paced":  {transport.Transport{}, false},
		"one limit":  {transport.Transport{Limiter: bucket(slow)}, false},
		"two limits": {transport.Transport{Limiter: bucket(slow, outbound.PerHour(100).Of(0, "hour"))}, false},
		"in flight":  {transport.Transport{Limiter: slots(1)}, true},
		"foreign":    {transport.Transport{Limiter: new(recorder)}, true},
		"OnResponse": {transport.Transport{OnResponse: ignore}, true},
	} {
		body := newBody("x")
		c.rt.Base = answer(200, body)
		resp := open(t, t.Context(), &c.rt)
		equal(t, resp.Body != io.ReadCloser(body), c.wrapped, "%s: wrapped", name)
	}
}

// One goroutine may close a body while another reads it and a third settles its call.
func TestCall_ReadCloseAndSettleMayRace(t *testing.T) {
	r := new(recorder)
	fast := bucket(slow)
	for range 100 {
		for _, l := range []outbound.Limiter{r, fast} {
			var permit *outbound.Permit
			resp := open(t, t.Context(), &transport.Transport{Base: answer(200, newBody("some text")), Limiter: l,
				OnResponse: func(_ *http.Response, p *outbound.Permit) { permit = p }})
			var all sync.WaitGroup
			all.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
			all.Go(func() { _ = resp.Body.Close() })
			all.Go(func() { permit.Settle(outbound.Cost{3}) })
			all.Wait()
		}
		got := r.take()
		fatalIf(t, got != "acquire 1, settle 3, done" && got != "acquire 1, done, settle 3", "recorded %q", got)
	}
}

// OnResponse settles and judges before the transport does, within MaxHold.
func TestOnResponse_GoesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		say  func(*outbound.Permit)
		want string
	}{
		"nothing":             {func(*outbound.Permit) {}, "refused 10s, done"},
		"settles":             {func(p *outbound.Permit) { p.Settle(outbound.Cost{2}) }, "settle 2, refused 10s, done"},
		"refused for longer":  {func(p *outbound.Permit) { p.Refused(time.Second) }, "refused 1s, done"},
		"holds only":          {func(p *outbound.Permit) { p.Hold(time.Second) }, "hold 1s, done"},
		"takes for a success": {(*outbound.Permit).Done, "done"}, // a lock that has nothing to do with the quota
		"is bounded":          {func(p *outbound.Permit) { p.Refused(99 * time.Hour); p.Hold(99 * time.Hour) }, "refused 24h0m0s, hold 24h0m0s, done"},
	} {
		r := new(recorder)
		trip(t, &transport.Transport{Base: answer(429, newBody("x"), "Retry-After", "10"), Limiter: r, OnResponse: func(_ *http.Response, p *outbound.Permit) { c.say(p) }})
		if got := r.take(); got != "acquire 1, "+c.want {
			t.Errorf("OnResponse %s: recorded %q, want %q after acquire", name, got, c.want)
		}
	}
}

// OnResponse gets a body and a permit also if neither exists.
func TestOnResponse_SeesUnpacedResponse(t *testing.T) {
	seen := false
	trip(t, &transport.Transport{Base: answer(429, nil), OnResponse: func(resp *http.Response, p *outbound.Permit) {
		seen = resp.Body != nil && p != nil
		p.Settle(outbound.Cost{1})
		p.Refused(0)
	}})
	errorIf(t, !seen, "OnResponse was not called, or without a body or a permit")
}

// duplex is the body of a 101 response.
type duplex struct {
	*counted
	bytes.Buffer
	half bool
}

func (d *duplex) Read(p []byte) (int, error) { return d.counted.Read(p) }
func (d *duplex) CloseWrite() error          { d.half = true; return nil }

// A connection that has switched protocols can be written to. It outlives the other side's EOF, its
// request's context and the Timeout, and ends its call when it is closed.
func TestUpgrade_EndsCallWhenClosed(t *testing.T) {
	for name, rt := range map[string]*transport.Transport{
		"in flight": {},
		"Timeout":   {Timeout: time.Minute},
		"AtEnd": {OnResponse: func(resp *http.Response, _ *outbound.Permit) {
			transport.AtEnd(resp, 10, func([]byte) { t.Error("AtEnd calls for a connection") })
		}},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, d := slots(1), &duplex{counted: newBody("hello")}
			var sent context.Context
			rt.Limiter, rt.Base = b, roundTripper(func(req *http.Request) (*http.Response, error) {
				sent = req.Context()
				return answer(101, d)(req)
			})
			ctx, cancel := context.WithCancel(t.Context())
			conn, ok := open(t, ctx, rt).Body.(io.ReadWriteCloser)
			fatalIf(t, !ok, "%s: the body cannot be written to", name)
			text, err := io.ReadAll(conn)
			errorIf(t, string(text) != "hello" || err != nil, "%s: read %q, %v", name, text, err)
			_, err = io.WriteString(conn, "more")
			errorIf(t, err != nil || d.String() != "more", "%s: wrote %q, %v", name, d.String(), err)
			time.Sleep(time.Hour)
			if err := conn.(interface{ CloseWrite() error }).CloseWrite(); err != nil || !d.half || sent.Err() != nil {
				t.Errorf("%s: CloseWrite: %v, and the context ended with %v", name, err, sent.Err())
			}
			cancel() // as libraries do when they have the connection
			synctest.Wait()
			errorIf(t, !full(t, b), "%s: the call has ended before the connection", name)
			if err := conn.Close(); err != nil || full(t, b) || d.closed.Load() != 1 {
				t.Errorf("%s: Close: %v, full %v, closed %d times", name, err, full(t, b), d.closed.Load())
			}
		})
	}
}

// A connection that fails ends its call, and has CloseWrite only if the body below can.
func TestUpgrade_FailureEndsCall(t *testing.T) {
	b := slots(1)
	type plain struct{ io.ReadWriteCloser }
	d := plain{&duplex{counted: &counted{Reader: iotest.ErrReader(errors.New("reset"))}}}
	resp := open(t, t.Context(), &transport.Transport{Base: answer(101, d), Limiter: b})
	_, err := resp.Body.Read(make([]byte, 1))
	errorIf(t, err == nil || full(t, b), "read: %v, full %v", err, full(t, b))
	err = resp.Body.(interface{ CloseWrite() error }).CloseWrite()
	errorIf(t, !errors.Is(err, http.ErrNotSupported), "CloseWrite of a body that has none: %v", err)
}

// text returns a transport whose responses have a body.
func text(l outbound.Limiter) *transport.Transport {
	return &transport.Transport{Base: answer(200, newBody("text")), Limiter: l}
}

// A call whose body the program forgets ends when its request's context is cancelled, reaches its
// deadline or meets the Timeout. A late Close ends no other call.
func TestForgottenBody_EndsWithContext(t *testing.T) {
	for name, c := range map[string]struct {
		timeout time.Duration
		ctx     func(context.Context) (context.Context, context.CancelFunc)
		cancel  bool
	}{
		"cancelled": {ctx: context.WithCancel, cancel: true},
		"deadline": {ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithTimeout(ctx, time.Minute)
		}},
		"Timeout": {ctx: context.WithCancel, timeout: time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := slots(1)
			ctx, cancel := c.ctx(t.Context())
			defer cancel()
			rt := text(b)
			rt.Timeout = c.timeout
			resp := open(t, ctx, rt)
			time.Sleep(59 * time.Second)
			errorIf(t, !full(t, b), "%s: the call has ended before", name)
			if c.cancel {
				cancel()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			errorIf(t, full(t, b), "%s: the call has not ended", name)
			open(t, t.Context(), text(b))
			resp.Body.Close()
			errorIf(t, !full(t, b), "%s: the late Close has ended another call", name)
		})
	}
}

// counting is a context that never ends and counts who waits for it.
type counting struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int32
}

func newCounting() *counting {
	return &counting{Context: context.Background(), done: make(chan struct{})}
}

func (c *counting) Done() <-chan struct{} { return c.done }

func (c *counting) AfterFunc(func()) func() bool {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

// A call that has ended leaves nothing with its context, which may live much longer.
func TestCall_LeavesNothingWithItsContext(t *testing.T) {
	ctx := newCounting()
	resp := open(t, ctx, text(slots(9)))
	n := ctx.waiting.Load()
	fatalIf(t, n != 1, "%d wait for the context of a call in progress, want 1", n)
	resp.Body.Close()
	resp.Body.Close()
	open(t, ctx, &transport.Transport{Base: answer(200, newBody("text")), OnResponse: ignore})
	equal(t, ctx.waiting.Load(), 0, "wait for the context of a call that has ended, or frees nothing")
}

// A forgotten body ends its call when the garbage collector finds it, although its context goes on,
// and leaves nothing with that. The permit of WithCost does not keep it.
func TestForgottenBody_IsCollected(t *testing.T) {
	counted := newCounting()
	for name, send := range map[string]func(*testing.T, *transport.Transport) context.Context{
		"read": func(t *testing.T, rt *transport.Transport) context.Context {
			_, _ = open(t, t.Context(), rt).Body.Read(make([]byte, 2))
			return t.Context()
		},
		"unread": func(t *testing.T, rt *transport.Transport) context.Context {
			open(t, counted, rt)
			return counted
		},
		"WithCost": func(t *testing.T, rt *transport.Transport) context.Context {
			ctx, p := transport.WithCost(t.Context(), outbound.Cost{1})
			open(t, ctx, rt)
			p.Settle(outbound.Cost{1})
			return ctx // net/http keeps the context of a body that is open
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := slots(1)
			ctx := send(t, text(b))
			for i := 0; full(t, b) || counted.waiting.Load() > 0; i++ {
				fatalIf(t, i == 2000, "not after %d collections", i)
				runtime.GC()
				<-time.After(time.Millisecond)
			}
			runtime.KeepAlive(ctx)
		})
	}
}

// A permit of WithCost settles its call after the garbage collector has found the response.
func TestForgottenBody_WithCostSettlesAfterCollection(t *testing.T) {
	b := bucket(slow, outbound.InFlight(9))
	ctx, p := transport.WithCost(t.Context(), outbound.Cost{1})
	open(t, ctx, text(b))
	for range 5 {
		runtime.GC()
	}
	p.Settle(outbound.Cost{7})
	wantCharged(t, b, 7)
}
