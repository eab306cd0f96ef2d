package transport_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// rude is a server that answers the first request of each connection. It reads and counts the second
// as well, and closes the connection.
type rude struct {
	net.Listener
	requests atomic.Int64
	together sync.WaitGroup // waits until each of the first requests has a connection of its own
}

func newRude(t *testing.T, connections int) *rude {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	r := &rude{Listener: l}
	r.together.Add(connections)
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go r.serve(c, n < connections)
		}
	}()
	return r
}

func (r *rude) serve(c net.Conn, early bool) {
	defer c.Close()
	in := bufio.NewReader(c)
	for n := 0; n < 2; n++ {
		req, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, req.Body)
		r.requests.Add(1)
		if n == 0 {
			if early {
				r.together.Done()
				r.together.Wait()
			}
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	}
}

// Each time that net/http sends a request again after a broken connection is paid.
func TestResend_IsPaid(t *testing.T) {
	const idle = 5
	for name, up := range map[string]bool{"answered by a new connection": true, "no new connection": false} {
		t.Run(name, func(t *testing.T) {
			server := newRude(t, idle)
			defer server.Close()
			base := &http.Transport{MaxIdleConnsPerHost: idle}
			defer base.CloseIdleConnections()
			b := bucket(slow)
			rt := &transport.Transport{Base: base, Limiter: b}
			url := "http://" + server.Addr().String()
			check(t, together(idle, func() error { return fetch(t, rt, url) }))
			if !up {
				server.Close()
			}
			before := server.requests.Load()

			_, err := getURL(t.Context(), rt, url)
			got := server.requests.Load() - before
			// A connection whose writer has not run for 50 ms is not idle, so the number may be smaller.
			errorIf(t, (err == nil) != up || got < 2,
				"the API has counted %d requests of one call, want several; %v", got, err)
			if s := stateOf(t, b); s.Level < float64(before+got)-0.5 {
				t.Errorf("the API has counted %d requests, and the level is %v", before+got, s.Level)
			}
		})
	}
}

// A Base that sends a request again without a bound, as net/http does after each GOAWAY that leaves
// the request out, does so at the limiter's pace, and with one call in flight.
func TestResend_WaitsForTheLimiter(t *testing.T) {
	for _, queued := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			sent := 0
			base := &idle{roundTripper: func(req *http.Request) (*http.Response, error) {
				for trace := httptrace.ContextClientTrace(req.Context()); req.Context().Err() == nil; sent++ {
					trace.GetConn("h:80")
					trace.WroteHeaders()
				}
				return nil, req.Context().Err()
			}}
			b := outbound.Must(outbound.NewBucket("b", outbound.PerSecond(10), outbound.InFlight(1)))
			var limiter outbound.Limiter = b
			if queued {
				limiter = queue.New(b, queue.Config{})
			}
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			_, err := getURL(ctx, &transport.Transport{Base: base, Limiter: limiter}, "http://h/")
			errorIf(t, sent < 90 || sent > 112 || !errors.Is(err, context.DeadlineExceeded),
				"queued %v: sent %d times in 10 s at 10 per second: %v", queued, sent, err)
			time.Sleep(time.Second)
			_, err = b.Acquire(t.Context(), outbound.Cost{1})
			errorIf(t, err != nil, "queued %v: the request is still in flight: %v", queued, err)
		})
	}
}

// A request that is sent again beyond the rate takes a slot first: another call may have taken that of
// the earlier send.
func TestResend_ExceedsNoInFlight(t *testing.T) {
	for name, takes := range map[string]time.Duration{"another call takes the slot": 5 * time.Second, "the rate is spent": 0} {
		bubble(t, name, func(t *testing.T) {
			b := outbound.Must(outbound.NewBucket("b", outbound.Per(1, time.Hour), outbound.InFlight(1)))
			asked, began := 0, time.Now()
			limiter := limiterFunc(func(ctx context.Context, cost outbound.Cost) (outbound.Permit, error) {
				if asked++; asked == 2 && takes > 0 {
					other, err := b.Acquire(ctx, outbound.Cost{outbound.Free})
					check(t, err)
					time.AfterFunc(takes, other.Done)
				}
				return b.Acquire(ctx, cost)
			})
			base := &idle{roundTripper: func(req *http.Request) (*http.Response, error) {
				trace := httptrace.ContextClientTrace(req.Context())
				trace.GetConn("h:443")
				trace.WroteHeaders()
				trace.GetConn("h:443")
				d := time.Since(began)
				errorIf(t, d < takes || d > takes+time.Second, "sent again after %v", d)
				var full *outbound.ThrottledError
				_, err := b.Acquire(t.Context(), outbound.Cost{outbound.Free})
				errorIf(t, !errors.As(err, &full) || full.InProgress != 1, "beside the request: %v", err)
				return &http.Response{StatusCode: 204, Body: http.NoBody, Request: req}, nil
			}}
			check(t, fetch(t, &transport.Transport{Base: base, Limiter: limiter}, "http://h/"))
			_, err := b.Acquire(t.Context(), outbound.Cost{outbound.Free})
			errorIf(t, err != nil, "after the request: %v", err)
		})
	}
}

// While a request waits for the limiter to be sent again over HTTP/2, others use the same
// connections: the limiter may wait for one of them.
func TestResend_BlocksNoOtherRequest(t *testing.T) {
	var requests, asked atomic.Int64
	url := frames(t, func(stream uint32, frame func(kind, flags byte, stream uint32, payload ...byte)) bool {
		if requests.Add(1) == 1 {
			frame(3, 0, stream, 0, 0, 0, 7) // RST_STREAM with REFUSED_STREAM
		} else {
			frame(1, 5, stream, 0x89) // :status 204, END_STREAM
		}
		return false
	})
	base := overHTTP2(t)
	rt := &transport.Transport{Base: base, Limiter: limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
		if asked.Add(1) == 2 {
			other := make(chan error, 1)
			go func() { other <- fetch(t, base, url) }()
			select {
			case err := <-other:
				return outbound.Permit{}, err
			case <-time.After(10 * time.Second):
				t.Error("another request waits for this one's limiter")
			}
		}
		return outbound.Permit{}, nil
	})}
	err := fetch(t, rt, url)
	errorIf(t, err != nil || asked.Load() != 2, "asked the limiter %d times: %v", asked.Load(), err)
}

// What is sent again ends the permits of nested transports, as no success, and asks their limiters from the outside
// in, as any request does. Otherwise two requests could wait for each other.
func TestResend_AsksNestedLimitersInOrder(t *testing.T) {
	var log []string
	noted := func(name string) outbound.Limiter {
		return limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) {
			log = append(log, name)
			return outbound.NewPermit(logged(func(end string) { log = append(log, name+end) })), nil
		})
	}
	sends := func(n int) http.RoundTripper {
		return &idle{roundTripper: func(req *http.Request) (*http.Response, error) {
			trace := httptrace.ContextClientTrace(req.Context())
			for range n {
				trace.GetConn("h:80")
				trace.WroteHeaders()
			}
			return &http.Response{StatusCode: 204, Body: http.NoBody, Request: req}, nil
		}}
	}
	twice := func(inner http.RoundTripper) http.RoundTripper {
		return &idle{roundTripper: func(req *http.Request) (*http.Response, error) {
			if _, err := inner.RoundTrip(req); err != nil {
				return nil, err
			}
			return inner.RoundTrip(req)
		}}
	}
	paced := func(n int) *transport.Transport { return &transport.Transport{Base: sends(n), Limiter: noted("inner")} }
	const first, last = "outer, inner, ", "inner ends, outer has no answer, outer ends, outer, inner, inner ends, outer ends"
	for name, c := range map[string]struct {
		base http.RoundTripper
		want string
	}{
		"the innermost Base sends it again": {paced(2), first + "inner has no answer, " + last},
		"a Base between":                    {twice(paced(1)), first + last},
		"a Base between, around a Pool":     {twice(&transport.Pool{Members: []*transport.Transport{paced(1)}}), first + last},
	} {
		log = nil
		costs := 0
		rt := &transport.Transport{Base: c.base, Limiter: noted("outer"), Cost: func(*http.Request) outbound.Cost {
			costs++
			return outbound.Cost{1}
		}}
		check(t, fetch(t, rt, "http://h/"))
		got := strings.Join(log, ", ")
		errorIf(t, got != c.want || costs != 2, "%s: got %s, want %s; %d costs", name, got, c.want, costs)
	}
}

// logged is a call that logs its end, and that it had no answer.
type logged func(string)

func (logged) Settle(outbound.Cost) {}
func (f logged) Answered(a outbound.Answer) {
	if a == (outbound.Answer{}) {
		f(" has no answer")
	}
}
func (f logged) Done() { f(" ends") }
