package transport

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"runtime"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func TestRequestsAreAdmittedByTheLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		ok := answer(200, nil)
		rt := &Transport{
			Base:    base(func(req *http.Request) (*http.Response, error) { sent++; return ok(req) }),
			Limiter: outbound.Must(outbound.NewBucket("api", outbound.Limit{Capacity: 2, LeakRate: 1})),
		}
		trip(t, rt)
		trip(t, rt)
		_, err := rt.RoundTrip(newRequest(t, nil))
		var full *outbound.ThrottledError
		if !errors.As(err, &full) || full.RetryAfter != time.Second || full.Key != "api" {
			t.Fatalf("third request: %v", err)
		}
		if sent != 2 {
			t.Errorf("%d requests were sent, want 2", sent)
		}
		time.Sleep(full.RetryAfter)
		trip(t, rt)
	})
}

func TestForAndCostAreCalledAndNilMeansTheDefault(t *testing.T) {
	own, other := new(recorder), new(recorder)
	ok := answer(200, nil)
	for _, c := range []struct {
		name       string
		rt         *Transport
		own, other string
	}{
		{"nothing set", &Transport{}, "", ""},
		{"Limiter", &Transport{Limiter: own}, "acquire 1, done", ""},
		{"For", &Transport{Limiter: own, For: func(*http.Request) outbound.Limiter { return other }}, "", "acquire 1, done"},
		{"For without Limiter", &Transport{For: func(*http.Request) outbound.Limiter { return other }}, "", "acquire 1, done"},
		{"For returns nil", &Transport{Limiter: own, For: func(*http.Request) outbound.Limiter { return nil }}, "acquire 1, done", ""},
		{"For returns nil without Limiter", &Transport{For: func(*http.Request) outbound.Limiter { return nil }}, "", ""},
		{"For returns Unlimited", &Transport{Limiter: own, For: func(*http.Request) outbound.Limiter { return outbound.Unlimited{} }}, "", ""},
		{"Cost", &Transport{Limiter: own, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{7} }}, "acquire 7, done", ""},
	} {
		c.rt.Base = ok
		trip(t, c.rt)
		if a, b := own.heard(), other.heard(); a != c.own || b != c.other {
			t.Errorf("%s: Limiter heard %q and the other %q, want %q and %q", c.name, a, b, c.own, c.other)
		}
	}
}

func TestNilBucketIsAnErrorAndNotUnpaced(t *testing.T) {
	var none *outbound.Bucket
	for name, rt := range map[string]*Transport{
		"Limiter": {Limiter: none},
		"For":     {For: func(*http.Request) outbound.Limiter { return none }},
	} {
		rt.Base = base(func(*http.Request) (*http.Response, error) { t.Errorf("%s: sent", name); return nil, io.EOF })
		body := newBody("x")
		if _, err := rt.RoundTrip(newRequest(t, body)); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
		if body.closed.Load() == 0 {
			t.Errorf("%s: body not closed", name)
		}
	}
}

func TestRequestBodyIsClosedWhereItIsNotHandedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		over, cancel := context.WithCancel(t.Context())
		cancel()
		full := outbound.Must(outbound.NewBucket("full", outbound.PerHour(1)))
		if _, err := full.Acquire(t.Context(), outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		bucket := outbound.Must(outbound.NewBucket("api", outbound.PerSecond(1)))
		crash := func() { panic("crash") }
		for name, c := range map[string]struct {
			rt  *Transport
			ctx context.Context
		}{
			"no room":              {&Transport{Limiter: full}, t.Context()},
			"refused by a queue":   {&Transport{Limiter: refusing{errors.New("closed")}}, t.Context()},
			"ctx done":             {&Transport{Limiter: bucket}, over},
			"bad cost":             {&Transport{Limiter: bucket, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{-1} }}, t.Context()},
			"cost too large":       {&Transport{Limiter: bucket, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{2} }}, t.Context()},
			"answered by us":       {&Transport{Limiter: full, OnRefusal: TooManyRequests}, t.Context()},
			"For panics":           {&Transport{For: func(*http.Request) outbound.Limiter { crash(); return nil }}, t.Context()},
			"Cost panics":          {&Transport{Limiter: bucket, Cost: func(*http.Request) outbound.Cost { crash(); return outbound.Cost{} }}, t.Context()},
			"OnRefusal panics":     {&Transport{Limiter: full, OnRefusal: func(*http.Request, error) (*http.Response, error) { crash(); return nil, nil }}, t.Context()},
			"Base panics":          {&Transport{Limiter: outbound.Unlimited{}, Base: base(func(*http.Request) (*http.Response, error) { crash(); return nil, nil })}, t.Context()},
			"Base panics, slowly":  {&Transport{Limiter: new(recorder), Base: base(func(*http.Request) (*http.Response, error) { crash(); return nil, nil })}, t.Context()},
			"the limiter panics":   {&Transport{Limiter: (*recorder)(nil)}, t.Context()},
			"For ends a goroutine": {&Transport{For: func(*http.Request) outbound.Limiter { runtime.Goexit(); return nil }}, t.Context()},
		} {
			if c.rt.Base == nil {
				c.rt.Base = base(func(*http.Request) (*http.Response, error) { t.Errorf("%s: sent", name); return nil, io.EOF })
			}
			body := newBody("x")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				panics(func() { _, _ = c.rt.RoundTrip(newRequest(t, body).WithContext(c.ctx)) })
			}()
			<-ended
			if n := body.closed.Load(); n != 1 {
				t.Errorf("%s: body closed %d times, want once", name, n)
			}
		}
	})
}

func TestRequestReachesBaseUnchanged(t *testing.T) {
	body := newBody("text")
	req := newRequest(t, body)
	req.Header.Set("Authorization", "secret")
	before, header := *req, req.Header.Clone()
	rt := &Transport{
		Limiter:    new(recorder),
		For:        ByHeader("Authorization", func(string) outbound.Limiter { return nil }),
		OnResponse: func(*http.Response, *outbound.Permit) {},
		Base: base(func(got *http.Request) (*http.Response, error) {
			if got != req || got.Body != body || body.closed.Load() != 0 {
				t.Error("the request or its body is another one, or closed")
			}
			return answer(200, nil)(got)
		}),
	}
	if _, err := rt.RoundTrip(req); err != nil {
		t.Fatal(err)
	}
	if req.URL != before.URL || req.Method != before.Method || req.Host != before.Host || !maps.EqualFunc(header, req.Header, func(a, b []string) bool { return fmt.Sprint(a) == fmt.Sprint(b) }) {
		t.Error("the request was changed")
	}
	if body.closed.Load() != 1 {
		t.Errorf("body closed %d times, want once, by Base", body.closed.Load())
	}
}

// A dial is a call to the host, too.
func TestARequestThatWasTriedStaysCharged(t *testing.T) {
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	for name, failed := range map[string]error{
		"refused":           dial,
		"wrapped":           fmt.Errorf("oauth: %w", dial),
		"no such host":      &net.OpError{Op: "dial", Err: &net.DNSError{IsNotFound: true}},
		"proxy":             &net.OpError{Op: "proxyconnect", Err: dial},
		"proxy said no":     &net.OpError{Op: "proxyconnect", Err: io.EOF},
		"reset":             &net.OpError{Op: "read", Err: syscall.ECONNRESET},
		"write":             &net.OpError{Op: "write", Err: syscall.EPIPE},
		"EOF":               io.ErrUnexpectedEOF,
		"bare DNS error":    &net.DNSError{},
		"ctx":               context.DeadlineExceeded,
		"throttled further": &outbound.ThrottledError{},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("api", outbound.PerHour(1)))
				r := new(recorder)
				for _, l := range []outbound.Limiter{b, r} {
					rt := &Transport{Limiter: l, Base: base(func(*http.Request) (*http.Response, error) { return nil, failed })}
					if resp, err := rt.RoundTrip(newRequest(t, nil)); err != failed || resp != nil {
						t.Errorf("%v, %v; want Base's error", resp, err)
					}
				}
				if _, err := b.Acquire(t.Context(), outbound.Cost{1}); err == nil {
					t.Errorf("after it the bucket says %v", err)
				}
				if got := r.heard(); got != "acquire 1, none, done" {
					t.Errorf("heard %q", got)
				}
			})
		})
	}
}

func TestBaseThatBreaksItsContractIsHeldToIt(t *testing.T) {
	for _, l := range []outbound.Limiter{nil, new(recorder)} {
		body := newBody("x")
		both := &Transport{Limiter: l, Base: base(func(*http.Request) (*http.Response, error) {
			return &http.Response{Body: body}, io.ErrUnexpectedEOF
		})}
		if resp, err := both.RoundTrip(newRequest(t, nil)); resp != nil || err != io.ErrUnexpectedEOF {
			t.Errorf("a response and an error came back as %v, %v", resp, err)
		}
		if body.closed.Load() != 1 {
			t.Error("the body of a response beside an error is open")
		}
		none := &Transport{Limiter: l, Base: base(func(*http.Request) (*http.Response, error) { return nil, nil })}
		if resp, err := none.RoundTrip(newRequest(t, nil)); resp != nil || err == nil {
			t.Errorf("nothing came back as %v, %v", resp, err)
		}
		if r, ok := l.(*recorder); ok {
			if got := r.heard(); got != "acquire 1, none, done, acquire 1, none, done" {
				t.Errorf("heard %q", got)
			}
		}
	}
}

func TestResponseWithoutHeadersOrBodyIsPassedOn(t *testing.T) {
	for _, status := range []int{0, 200, 429, 503} {
		r := new(recorder)
		bare := &http.Response{StatusCode: status}
		rt := &Transport{Limiter: r, Base: base(func(*http.Request) (*http.Response, error) { return bare, nil })}
		if resp, err := rt.RoundTrip(newRequest(t, nil)); resp != bare || err != nil {
			t.Errorf("%d: %v, %v", status, resp, err)
		}
		want := "acquire 1, done"
		switch status {
		case 429:
			want = "acquire 1, refused 0s, done"
		case 503:
			want = "acquire 1, none, done"
		}
		if got := r.heard(); got != want {
			t.Errorf("%d: heard %q, want %q", status, got, want)
		}
	}
}

func TestPanicPassesOnAndEndsTheCall(t *testing.T) {
	for name, sabotage := range map[string]func(*Transport, *counted){
		"Base": func(rt *Transport, _ *counted) {
			rt.Base = base(func(*http.Request) (*http.Response, error) { panic("crash") })
		},
		"OnResponse": func(rt *Transport, body *counted) {
			rt.Base = answer(200, body)
			rt.OnResponse = func(*http.Response, *outbound.Permit) { panic("crash") }
		},
	} {
		b := outbound.Must(outbound.NewBucket("slots", outbound.InFlight(1)))
		body := newBody("x")
		rt := &Transport{Limiter: b}
		sabotage(rt, body)
		if v := panics(func() { _, _ = rt.RoundTrip(newRequest(t, nil)) }); v != "crash" {
			t.Errorf("%s: recovered %v", name, v)
		}
		if _, err := b.Acquire(t.Context(), outbound.Cost{1}); err != nil {
			t.Errorf("%s: the slot is lost: %v", name, err)
		}
		if rt.OnResponse != nil && body.closed.Load() != 1 {
			t.Errorf("%s: the response's body was closed %d times", name, body.closed.Load())
		}
	}
}

type idle struct {
	base
	closed int
}

func (b *idle) CloseIdleConnections() { b.closed++ }

func TestCloseIdleConnectionsIsForwarded(t *testing.T) {
	b := &idle{}
	(&http.Client{Transport: &Transport{Base: b}}).CloseIdleConnections()
	if b.closed != 1 {
		t.Errorf("closed %d times, want once", b.closed)
	}
	(&Transport{Base: base(nil)}).CloseIdleConnections() // it has no such method: nothing happens
}
