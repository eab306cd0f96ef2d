package transport

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

func slots(n int) *outbound.Bucket {
	return outbound.Must(outbound.NewBucket("slots", outbound.InFlight(n)))
}

func full(t *testing.T, b *outbound.Bucket) bool {
	t.Helper()
	ok, err := b.AbleToAccept(t.Context(), outbound.Cost{1})
	if err != nil {
		t.Fatal(err)
	}
	return !ok
}

func TestACallEndsWithItsBody(t *testing.T) {
	broken := errors.New("connection reset")
	for name, c := range map[string]struct {
		body io.ReadCloser
		end  func(io.ReadCloser)
	}{
		"read to the end": {newBody("text"), func(b io.ReadCloser) {
			if text, err := io.ReadAll(b); string(text) != "text" || err != nil {
				t.Errorf("read %q, %v", text, err)
			}
		}},
		"data and EOF at once": {io.NopCloser(iotest.DataErrReader(strings.NewReader("text"))), func(b io.ReadCloser) {
			if text, err := io.ReadAll(b); string(text) != "text" || err != nil {
				t.Errorf("read %q, %v", text, err)
			}
		}},
		"an error": {io.NopCloser(iotest.ErrReader(broken)), func(b io.ReadCloser) {
			if _, err := io.ReadAll(b); err != broken {
				t.Errorf("read %v", err)
			}
		}},
		"closed unread": {newBody("text"), func(b io.ReadCloser) { b.Close() }},
		"Close panics":  {struct{ io.ReadCloser }{}, func(b io.ReadCloser) { panics(func() { b.Close() }) }},
	} {
		b := slots(1)
		resp, err := (&Transport{Base: answer(200, c.body), Limiter: b}).RoundTrip(newRequest(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		if !full(t, b) {
			t.Errorf("%s: the call ended with its headers", name)
		}
		c.end(resp.Body)
		if full(t, b) {
			t.Errorf("%s: the call has not ended", name)
		}
		panics(func() { resp.Body.Close() })
		if resp, err = (&Transport{Base: answer(200, newBody("x")), Limiter: b}).RoundTrip(newRequest(t, nil)); err != nil || !full(t, b) {
			t.Errorf("%s: the slot came back twice, or not: %v, %v", name, resp, err)
		}
	}
}

func TestCallWithoutABodyEndsAtOnce(t *testing.T) {
	for _, body := range []io.ReadCloser{nil, http.NoBody} {
		b := slots(1)
		resp, err := (&Transport{Base: answer(200, body), Limiter: b}).RoundTrip(newRequest(t, nil))
		if err != nil || full(t, b) || resp.Body != body {
			t.Errorf("body %v: %v, full %v, body %v", body, err, full(t, b), resp.Body)
		}
	}
}

func TestAResponseWithoutABodyEndsItsCallOverHTTP2AsWell(t *testing.T) {
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
			req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := (&Transport{Base: s.Client().Transport, Limiter: b}).RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if resp.Proto[:6] != name {
				t.Errorf("%s over %s", name, resp.Proto)
			}
			if keeps := full(t, b); keeps != c.keeps {
				t.Errorf("%s: the call of %s %s is in progress until Close: %v", name, c.method, path, keeps)
			}
			resp.Body.Close()
		}
		s.Close()
	}
}

func TestBodyIsWrappedOnlyIfThePermitNeedsIt(t *testing.T) {
	fast := outbound.Must(outbound.NewBucket("one", outbound.PerSecond(1)))
	two := outbound.Must(outbound.NewBucket("two", outbound.PerSecond(1), outbound.PerHour(100).Of(0, "hour")))
	for name, c := range map[string]struct {
		rt      Transport
		wrapped bool
	}{
		"not paced":     {Transport{}, false},
		"one limit":     {Transport{Limiter: fast}, false},
		"two limits":    {Transport{Limiter: two}, false},
		"calls at once": {Transport{Limiter: slots(1)}, true},
		"foreign":       {Transport{Limiter: new(recorder)}, true},
		"OnResponse":    {Transport{OnResponse: func(*http.Response, *outbound.Permit) {}}, true},
	} {
		body := newBody("x")
		c.rt.Base = answer(200, body)
		resp, err := c.rt.RoundTrip(newRequest(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		if wrapped := resp.Body != io.ReadCloser(body); wrapped != c.wrapped {
			t.Errorf("%s: wrapped %v, want %v", name, wrapped, c.wrapped)
		}
	}
}

// One goroutine may close a body while another reads it and a third settles its call.
func TestReadCloseAndSettleMayRace(t *testing.T) {
	r := new(recorder)
	fast := outbound.Must(outbound.NewBucket("one", outbound.Limit{Capacity: 1000, LeakRate: 1}))
	for range 100 {
		for _, l := range []outbound.Limiter{r, fast} {
			var permit *outbound.Permit
			rt := &Transport{Base: answer(200, newBody("some text")), Limiter: l, OnResponse: func(_ *http.Response, p *outbound.Permit) { permit = p }}
			resp, err := rt.RoundTrip(newRequest(t, nil))
			if err != nil {
				t.Fatal(err)
			}
			var all sync.WaitGroup
			all.Go(func() { _, _ = io.Copy(io.Discard, resp.Body) })
			all.Go(func() { _ = resp.Body.Close() })
			all.Go(func() { permit.Settle(outbound.Cost{3}) })
			all.Wait()
		}
		if heard := r.heard(); heard != "acquire 1, settle 3, done" && heard != "acquire 1, done, settle 3" {
			t.Fatalf("heard %q", heard)
		}
	}
}

func TestOnResponseGoesFirst(t *testing.T) {
	for name, c := range map[string]struct {
		say  func(*outbound.Permit)
		want string
	}{
		"nothing":            {func(*outbound.Permit) {}, "refused 10s, done"},
		"settles":            {func(p *outbound.Permit) { p.Settle(outbound.Cost{2}) }, "settle 2, refused 10s, done"},
		"knows better":       {func(p *outbound.Permit) { p.Refused(time.Second) }, "refused 1s, done"},
		"wants a pause only": {func(p *outbound.Permit) { p.Hold(time.Second) }, "hold 1s, done"},
		"takes it for a success, as a lock that has nothing to do with the quota": {func(p *outbound.Permit) { p.Done() }, "done"},
		"is bounded": {func(p *outbound.Permit) { p.Refused(9 * time.Hour); p.Hold(9 * time.Hour) }, "refused 1h0m0s, hold 1h0m0s, done"},
	} {
		r := new(recorder)
		trip(t, &Transport{Base: answer(429, newBody("x"), "Retry-After", "10"), Limiter: r, OnResponse: func(_ *http.Response, p *outbound.Permit) { c.say(p) }})
		if got := r.heard(); got != "acquire 1, "+c.want {
			t.Errorf("OnResponse %s: heard %q, want %q after acquire", name, got, c.want)
		}
	}
}

// settling is a body as users wrap it: it knows the cost at its end.
type settling struct {
	io.ReadCloser
	permit *outbound.Permit
}

func (s settling) Close() error {
	s.permit.Settle(outbound.Cost{5})
	return s.ReadCloser.Close()
}

func TestOnResponseCanSettleAtTheBodysEnd(t *testing.T) {
	for _, l := range []outbound.Limiter{outbound.Must(outbound.NewBucket("one", outbound.Limit{Capacity: 10, LeakRate: 1e-3})),
		outbound.Must(outbound.NewBucket("two", outbound.Limit{Capacity: 10, LeakRate: 1e-3}, outbound.InFlight(9)))} {
		rt := &Transport{
			Base:    answer(200, newBody("text")),
			Limiter: l,
			Cost:    func(*http.Request) outbound.Cost { return outbound.Cost{10} },
			OnResponse: func(resp *http.Response, p *outbound.Permit) {
				resp.Body = settling{resp.Body, p}
			},
		}
		trip(t, rt)
		if _, err := l.Acquire(t.Context(), outbound.Cost{5}); err != nil {
			t.Errorf("what was not used has not come back: %v", err)
		}
	}
}

func TestOnResponseSeesAResponseThatIsNotPaced(t *testing.T) {
	seen := false
	trip(t, &Transport{Base: answer(429, nil), OnResponse: func(resp *http.Response, p *outbound.Permit) {
		seen = resp.Body != nil && p != nil
		p.Settle(outbound.Cost{1})
		p.Refused(0)
	}})
	if !seen {
		t.Error("OnResponse was not called, or without a body or a permit")
	}
}

// duplex is the body of a 101 response.
type duplex struct {
	*counted
	bytes.Buffer
	half bool
}

func (d *duplex) Read(p []byte) (int, error) { return d.counted.Read(p) }
func (d *duplex) CloseWrite() error          { d.half = true; return nil }

func TestUpgradedBodyCanBeWrittenToAndEndsTheCallWhenItIsClosed(t *testing.T) {
	b := slots(1)
	d := &duplex{counted: newBody("hello")}
	resp, err := (&Transport{Base: answer(101, d), Limiter: b}).RoundTrip(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	rw, ok := resp.Body.(io.ReadWriteCloser)
	if !ok {
		t.Fatalf("%T cannot be written to", resp.Body)
	}
	if text, err := io.ReadAll(rw); string(text) != "hello" || err != nil {
		t.Errorf("read %q, %v", text, err)
	}
	if !full(t, b) {
		t.Error("the other side's EOF has ended the call")
	}
	if _, err := io.WriteString(rw, "more"); err != nil || d.String() != "more" {
		t.Errorf("wrote %q, %v", d.String(), err)
	}
	if err := rw.(interface{ CloseWrite() error }).CloseWrite(); err != nil || !d.half {
		t.Errorf("CloseWrite: %v", err)
	}
	if err := rw.Close(); err != nil || full(t, b) || d.closed.Load() != 1 {
		t.Errorf("Close: %v, full %v, closed %d times", err, full(t, b), d.closed.Load())
	}
}

// Something below may have made such a body of a file or a buffer.
func TestABodyThatCanBeWrittenToIsNoUpgrade(t *testing.T) {
	for _, status := range []int{200, 206, 426, 500} {
		b := slots(1)
		resp, err := (&Transport{Base: answer(status, &duplex{counted: newBody("hello")}), Limiter: b}).RoundTrip(newRequest(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(resp.Body); string(text) != "hello" || err != nil {
			t.Errorf("%d: read %q, %v", status, text, err)
		}
		if full(t, b) {
			t.Errorf("%d: read to its end, and the call has not ended", status)
		}
	}
}

func TestUpgradedBodyThatFailsEndsTheCall(t *testing.T) {
	b := slots(1)
	d := &duplex{counted: &counted{Reader: iotest.ErrReader(errors.New("reset"))}}
	resp, err := (&Transport{Base: answer(101, d), Limiter: b}).RoundTrip(newRequest(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := resp.Body.Read(make([]byte, 1)); err == nil || full(t, b) {
		t.Errorf("read: %v, full %v", err, full(t, b))
	}
	type plain struct{ io.ReadWriteCloser }
	if err := slotless(plain{d}).(interface{ CloseWrite() error }).CloseWrite(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("CloseWrite of a body that has none: %v", err)
	}
}

func slotless(rc io.ReadCloser) io.ReadCloser {
	resp := &http.Response{StatusCode: 101, Body: rc}
	new(attempt).endWithBody(context.Background(), resp)
	return resp.Body
}
