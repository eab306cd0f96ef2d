package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// A request over the limit is not sent, and its typed error comes back through an http.Client.
func TestTransport_LimiterAdmitsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		rt := &transport.Transport{
			Base:    roundTripper(func(req *http.Request) (*http.Response, error) { sent++; return answer(200, nil)(req) }),
			Limiter: bucket(outbound.Limit{Capacity: 2, LeakRate: 1}),
		}
		trip(t, rt)
		trip(t, rt)
		err := get(t.Context(), rt)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		fatalIf(t, !ok || full.RetryAfter != time.Second || full.Key != "api" || !errors.Is(err, outbound.ErrThrottled),
			"third request: %v", err)
		outer, ok := errors.AsType[*url.Error](err)
		errorIf(t, !ok || outer.Timeout(), "a refusal is not a timeout: %v", err)
		errorIf(t, sent != 2, "%d requests were sent, want 2", sent)
		time.Sleep(full.RetryAfter)
		trip(t, rt)
	})
}

// For selects the limiter and Cost the cost; without them, or with nil, the defaults apply.
func TestTransport_ForAndCost(t *testing.T) {
	own, other := new(recorder), new(recorder)
	selects := func(l outbound.Limiter) func(*http.Request) outbound.Limiter {
		return func(*http.Request) outbound.Limiter { return l }
	}
	for _, c := range []struct {
		name       string
		rt         *transport.Transport
		own, other string
	}{
		{"nothing set", &transport.Transport{}, "", ""},
		{"Limiter", &transport.Transport{Limiter: own}, "acquire 1, done", ""},
		{"For", &transport.Transport{Limiter: own, For: selects(other)}, "", "acquire 1, done"},
		{"For without Limiter", &transport.Transport{For: selects(other)}, "", "acquire 1, done"},
		{"For returns nil", &transport.Transport{Limiter: own, For: selects(nil)}, "acquire 1, done", ""},
		{"For returns nil without Limiter", &transport.Transport{For: selects(nil)}, "", ""},
		{"For returns Unlimited", &transport.Transport{Limiter: own, For: selects(outbound.Unlimited{})}, "", ""},
		{"Cost", &transport.Transport{Limiter: own, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{7} }}, "acquire 7, done", ""},
	} {
		c.rt.Base = answer(200, nil)
		trip(t, c.rt)
		if a, b := own.take(), other.take(); a != c.own || b != c.other {
			t.Errorf("%s: Limiter recorded %q and the other %q, want %q and %q", c.name, a, b, c.own, c.other)
		}
	}
}

// A request that is not handed on is not sent, and its body is closed once.
func TestTransport_ClosesBodyOfUnsentRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		soon, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		used, api := bucket(outbound.PerHour(1)), bucket(outbound.PerSecond(1))
		must(used.Acquire(t.Context(), outbound.Cost{1}))
		var none *outbound.Bucket
		closed := errors.New("closed")
		costs := func(n float64) func(*http.Request) outbound.Cost {
			return func(*http.Request) outbound.Cost { return outbound.Cost{n} }
		}
		for name, c := range map[string]struct {
			rt  *transport.Transport
			ctx context.Context // nil: t's
			err error           // nil: none, or a panic
		}{
			"over the limit":       {rt: &transport.Transport{Limiter: used}, err: outbound.ErrThrottled},
			"refused by a queue":   {rt: &transport.Transport{Limiter: refusing(closed)}, err: closed},
			"ctx done":             {rt: &transport.Transport{Limiter: api}, ctx: over, err: context.Canceled},
			"cancelled, waiting":   {rt: &transport.Transport{Limiter: waiting(time.Minute)}, ctx: soon, err: context.Canceled},
			"nil Limiter":          {rt: &transport.Transport{Limiter: none}, err: outbound.ErrInvalid},
			"nil For":              {rt: &transport.Transport{For: func(*http.Request) outbound.Limiter { return none }}, err: outbound.ErrInvalid},
			"bad cost":             {rt: &transport.Transport{Limiter: api, Cost: costs(-1)}, err: outbound.ErrInvalid},
			"cost too large":       {rt: &transport.Transport{Limiter: api, Cost: costs(2)}, err: outbound.ErrTooLarge},
			"answered by us":       {rt: &transport.Transport{Limiter: used, OnRefusal: transport.TooManyRequests}},
			"For panics":           {rt: &transport.Transport{For: func(*http.Request) outbound.Limiter { panic("crash") }}},
			"Cost panics":          {rt: &transport.Transport{Limiter: api, Cost: func(*http.Request) outbound.Cost { panic("crash") }}},
			"OnRefusal panics":     {rt: &transport.Transport{Limiter: used, OnRefusal: func(*http.Request, error) (*http.Response, error) { panic("crash") }}},
			"Base panics":          {rt: &transport.Transport{Limiter: outbound.Unlimited{}, Base: roundTripper(crash)}},
			"Base panics, slowly":  {rt: &transport.Transport{Limiter: new(recorder), Base: roundTripper(crash)}},
			"the limiter panics":   {rt: &transport.Transport{Limiter: (*recorder)(nil)}},
			"For ends a goroutine": {rt: &transport.Transport{For: func(*http.Request) outbound.Limiter { runtime.Goexit(); return nil }}},
		} {
			if c.rt.Base == nil {
				c.rt.Base = roundTripper(func(*http.Request) (*http.Response, error) { t.Errorf("%s: sent", name); return nil, io.EOF })
			}
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			body := newBody("x")
			var err error
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				panics(func() { _, err = c.rt.RoundTrip(newRequest(t, body).WithContext(c.ctx)) })
			}()
			<-ended
			errorIf(t, !errors.Is(err, c.err), "%s: %v, want %v", name, err, c.err)
			n := body.closed.Load()
			errorIf(t, n != 1, "%s: body closed %d times, want once", name, n)
		}
	})
}

// Base gets the request itself, unchanged, with its body open.
func TestTransport_DoesNotChangeTheRequest(t *testing.T) {
	body := newBody("text")
	req := newRequest(t, body)
	req.Header.Set("Authorization", "secret")
	before, header := *req, req.Header.Clone()
	rt := &transport.Transport{
		Limiter:    new(recorder),
		For:        transport.ByHeader("Authorization", func(string) outbound.Limiter { return nil }),
		OnResponse: ignore,
		Base: roundTripper(func(got *http.Request) (*http.Response, error) {
			errorIf(t, got != req || got.Body != body || body.closed.Load() != 0,
				"the request or its body is another one, or closed")
			return answer(200, nil)(got)
		}),
	}
	must(rt.RoundTrip(req))
	errorIf(t, req.URL != before.URL || req.Method != before.Method || req.Host != before.Host || !maps.EqualFunc(header, req.Header, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }),
		"the request was changed")
	errorIf(t, body.closed.Load() != 1, "body closed %d times, want once, by Base", body.closed.Load())
}

// What Base returns is judged and passed on, also a response without headers and body, as a fake returns it. A request that
// was tried stays charged: a dial is a call to the host, too. A Base that returns both a response and an error, or neither,
// is held to its contract.
func TestTransport_PassesOnWhatBaseReturns(t *testing.T) {
	body := newBody("x")
	for name, c := range map[string]struct {
		resp *http.Response
		err  error
		want string // what is recorded between the two ends
	}{
		"no connection":           {nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, "none, "},
		"a broken connection":     {nil, io.ErrUnexpectedEOF, "none, "},
		"a limiter out of sight":  {nil, &outbound.ThrottledError{}, "none, "},
		"a response and an error": {&http.Response{Body: body}, io.ErrUnexpectedEOF, "none, "},
		"neither":                 {nil, nil, "none, "},
		"bare":                    {&http.Response{}, nil, ""},
		"bare 200":                {&http.Response{StatusCode: 200}, nil, ""},
		"bare 429":                {&http.Response{StatusCode: 429}, nil, "refused 0s, "},
		"bare 503":                {&http.Response{StatusCode: 503}, nil, "none, "},
	} {
		for _, timeout := range []time.Duration{0, time.Hour} {
			b, r := bucket(slow), new(recorder)
			for _, l := range []outbound.Limiter{b, r} {
				rt := &transport.Transport{Limiter: l, Timeout: timeout, Base: roundTripper(func(*http.Request) (*http.Response, error) { return c.resp, c.err })}
				resp, err := rt.RoundTrip(newRequest(t, nil))
				if name == "neither" && err != nil {
					err = nil // it is the transport's own
				} else if name == "neither" {
					t.Error("nothing came back as a success")
				}
				errorIf(t, err != c.err || c.err == nil && resp != c.resp || c.err != nil && resp != nil,
					"%s: came back as %v, %v", name, resp, err)
			}
			if c.err != nil {
				wantCharged(t, b, 1)
			}
			equal(t, r.take(), "acquire 1, "+c.want+"done", "%s: recorded", name)
		}
	}
	n := body.closed.Load()
	errorIf(t, n != 4, "the body of a response with an error was closed %d times", n) // in each of the requests
}

// A panic of Base or of a user's function passes on, ends the call and closes the response's body.
func TestTransport_PanicEndsTheCall(t *testing.T) {
	for name, rt := range map[string]*transport.Transport{
		"Base":       {Base: roundTripper(crash)},
		"OnResponse": {OnResponse: func(*http.Response, *outbound.Permit) { panic("crash") }},
		"OnSignal":   {OnSignal: func(*http.Response, *profile.Signal) { panic("crash") }},
		"Used":       {Used: func(*http.Response) (outbound.Cost, bool) { panic("crash") }},
	} {
		for _, b := range []*outbound.Bucket{bucket(slow), slots(1)} {
			body, hasBody := newBody("x"), rt.Base == nil
			try := *rt
			if try.Limiter = b; hasBody {
				try.Base = answer(200, body)
			}
			equal(t, panics(func() { _, _ = try.RoundTrip(newRequest(t, nil)) }), "crash", "%s: recovered", name)
			errorIf(t, full(t, b), "%s: the call is still in flight", name)
			errorIf(t, hasBody && body.closed.Load() != 1,
				"%s: the response's body was closed %d times", name, body.closed.Load())
		}
	}
}

// idle is a Base that keeps connections, as an http.Transport does.
type idle struct {
	roundTripper
	closed int
}

func (b *idle) CloseIdleConnections() { b.closed++ }

// CloseIdleConnections closes those of a Base that has such a method.
func TestTransport_CloseIdleConnections(t *testing.T) {
	b := &idle{}
	(&http.Client{Transport: &transport.Transport{Base: b}}).CloseIdleConnections()
	errorIf(t, b.closed != 1, "closed %d times, want once", b.closed)
	(&transport.Transport{Base: roundTripper(nil)}).CloseIdleConnections() // it has no such method: nothing happens
}

// Connections are used again only if bodies were read and closed. A wrapper that loses either leaks
// one with each request. net/http also opens another one if a connection's writer has not run for 50 ms.
func TestTransport_ReusesConnections(t *testing.T) {
	var opened atomic.Int32
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "text") }))
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.Start()
	t.Cleanup(s.Close)
	for _, l := range []outbound.Limiter{bucket(slow), slots(1)} {
		for range 20 {
			check(t, fetch(t, &transport.Transport{Base: s.Client().Transport, Limiter: l}, s.URL))
		}
	}
	n := opened.Load()
	errorIf(t, n > 10, "40 requests in a row opened %d connections", n)
}
