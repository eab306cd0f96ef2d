package transport_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
	"github.com/dripfeed/dripfeed/transport/profile"
)

// callers calls an API from so many goroutines, behind a queue around a bucket of the limit, until
// the time is up.
func callers(t *testing.T, n int, rt *transport.Transport, limit outbound.Limit, length time.Duration) {
	rt.Limiter = queue.New(bucket(limit), queue.Config{})
	ctx, stop := context.WithTimeout(t.Context(), length)
	defer stop()
	var all sync.WaitGroup
	for range n {
		all.Go(func() { call(ctx, rt) })
	}
	all.Wait()
}

// The Timeout of an http.Client counts the wait in a queue, which refuses early what cannot be in
// time. The error is a timeout that has the time to retry.
func TestQueue_RefusesBeforeTheClientsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(outbound.Limit{Capacity: 1, LeakRate: 0.1})
		rt := &transport.Transport{Base: answer(200, nil), Limiter: queue.New(b, queue.Config{})}
		trip(t, rt)
		begin := time.Now()
		_, err := (&http.Client{Transport: rt, Timeout: 5 * time.Second}).Get("http://api.test/")
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		errorIf(t, !ok || full.RetryAfter < 9*time.Second || time.Since(begin) != 0,
			"after %v: %v; want an immediate refusal, with the 10 s that it takes", time.Since(begin), err)
		outer, ok := errors.AsType[*url.Error](err)
		errorIf(t, !ok || !outer.Timeout() || !errors.Is(err, context.DeadlineExceeded), "%v: not a timeout", err)
	})
}

// Discord reports with each response what remains of a window of five calls. Reservations before the
// window's end do not count in the next one. A reset in 2 s or less holds no call, so that window's
// end may bring a refusal. There is one: with a limit that is exactly the API's, two calls may meet
// there.
func TestQueue_UsesSmallWindowThatTheAPIReports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := outboundtest.Discord()
		api.Latency = 50 * time.Millisecond
		callers(t, 4, &transport.Transport{Profile: profile.Discord, Base: roundTripper(func(req *http.Request) (*http.Response, error) {
			req = req.Clone(req.Context())
			req.Method, req.URL.Path = http.MethodPost, "/api/channels/1/messages"
			return api.RoundTrip(req)
		})}, outbound.Limit{Capacity: 5, LeakRate: 1}, 20*time.Minute)
		if r := api.Report(); r.Refused > 2 || r.Admitted < 1140 {
			t.Errorf("%d calls in 20 minutes, %d refused; want nearly 1200 and one or two", r.Arrivals, r.Refused)
		}
	})
}

// stamps makes an API report what remains of the first rule until a reset, on refusals as well: in
// whole seconds from now, rounded up ("delta"), as a point in time ("epoch"), or not at all ("").
func stamps(reset string) outboundtest.Vendor {
	return func(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
		c := &d.Counts[0]
		left := int64(math.Ceil(c.Reset.Seconds()))
		if reset == "epoch" {
			left = int64(math.Ceil(float64(d.At.Add(c.Reset).UnixNano()) / 1e9))
		}
		if reset != "" {
			w.Header().Set("X-RateLimit-Limit", strconv.Itoa(int(c.Limit)))
			w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(int(c.Remaining)))
			w.Header().Set("X-RateLimit-Reset", strconv.FormatInt(left, 10))
		}
		next.ServeHTTP(w, r)
	}
}

// windowed calls an API of n calls per window as fast as a limit allows. It returns which part of the
// API's limit the calls used from a time on, and which part of the calls the API refused.
func windowed(t *testing.T, limit outbound.Limit, n float64, window time.Duration, reset string, warm, length time.Duration) (used, refused float64) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.FixedWindow(n, window)}, Latency: 30 * time.Millisecond, Skew: thisCentury, Vendor: stamps(reset)}
		begin := time.Now()
		callers(t, 10, &transport.Transport{Base: api}, limit, warm+length)
		used = admitted(api, begin.Add(warm), length) / (n * length.Seconds() / window.Seconds())
		r := api.Report()
		refused = float64(r.Refused) / float64(r.Arrivals)
	})
	return used, refused
}

// windows are APIs, and which part of its limit a program has to use that is configured with twice
// of it.
var windows = []struct {
	n      float64
	window time.Duration
	used   float64
}{{5, time.Second, 0.93}, {50, time.Second, 0.92}, {40, 2 * time.Second, 0.92}, {50, 10 * time.Second, 0.98}, {500, 10 * time.Second, 0.93}, {600, time.Minute, 0.98}}

// A program that keeps the API's limit learns only just before the reset that nothing remains. A hold
// until then, in whole seconds, would cost a short window its beginning.
func TestQueue_RightLimitLosesNothingByResets(t *testing.T) {
	for _, c := range windows {
		t.Run(fmt.Sprintf("%v per %v", c.n, c.window), func(t *testing.T) {
			limit, length := outbound.Per(c.n, c.window), max(20*time.Second, 2*c.window)
			without, _ := windowed(t, limit, c.n, c.window, "", 0, length)
			for _, reset := range []string{"delta", "epoch"} {
				used, refused := windowed(t, limit, c.n, c.window, reset, 0, length)
				t.Logf("%s: %.1f %% used, %.1f without headers, %.2f refused", reset, 100*used, 100*without, 100*refused)
				errorIf(t, used < 0.94 || used < without-0.01 || refused > 0.001,
					"%s: missed: 94 %% used, 1 point less than without headers, none refused", reset)
			}
		})
	}
}

// If our limit is twice the API's, refusals do in short windows what the hold does in long ones.
func TestQueue_FindsLimitOfShortWindows(t *testing.T) {
	sampled(t)
	for i, c := range windows {
		t.Run(fmt.Sprintf("%v per %v", c.n, c.window), func(t *testing.T) {
			// Until 16 refusals have come, the speed falls to no less than half, which is just what
			// this API allows.
			const warm = 6 * time.Minute
			length := 4 * time.Minute
			if c.n/c.window.Seconds() < 10 { // one refusal counts for more
				length = 10 * time.Minute
			}
			resets := []string{"delta", "epoch"}
			if os.Getenv("DRIPFEED_LONG") == "" {
				resets = resets[i%2:][:1]
			}
			for _, reset := range resets {
				used, refused := windowed(t, outbound.Per(2*c.n, c.window), c.n, c.window, reset, warm, length)
				t.Logf("%s: %.1f %% used, %.2f refused", reset, 100*used, 100*refused)
				errorIf(t, used < c.used || refused > 0.007,
					"%s: missed: %.0f %% used, 0.7 refused", reset, 100*c.used)
			}
		})
	}
}

// linear returns an API that speaks as Linear does: 2500 requests and 3 million points of complexity
// in leaky buckets of an hour, and 30 searches in one of a minute. Each query costs the same points.
func linear(points float64) *outboundtest.API {
	search := func(r *http.Request) string {
		if r.URL.Path == "/search" {
			return "searchIssues"
		}
		return ""
	}
	return &outboundtest.API{
		Rules: []outboundtest.Rule{
			outboundtest.LeakyBucket(2500, 2500./3600).Of("Requests", nil),
			outboundtest.LeakyBucket(3e6, 3e6/3600).Of("Complexity", func(*http.Request) float64 { return points }),
			outboundtest.LeakyBucket(30, 30./60).Of("Endpoint-Requests", nil).By(search),
		},
		Latency: 50 * time.Millisecond, Skew: thisCentury,
		Vendor: func(w http.ResponseWriter, r *http.Request, d *outboundtest.Decision, next http.Handler) {
			h := w.Header()
			h.Set("X-Complexity", fmt.Sprint(points))
			for _, c := range d.Counts {
				h.Set("X-RateLimit-"+c.Unit+"-Limit", fmt.Sprint(int(c.Limit)))
				h.Set("X-RateLimit-"+c.Unit+"-Remaining", fmt.Sprint(int(c.Remaining)))
				h.Set("X-RateLimit-"+c.Unit+"-Reset", fmt.Sprint(d.At.Add(c.Reset).UnixMilli()))
				if c.Key != "" {
					h.Set("X-RateLimit-Endpoint-Name", c.Key)
				}
			}
			if !d.Refused {
				next.ServeHTTP(w, r)
				return
			}
			h.Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"errors":[{"message":"Rate limit exceeded","extensions":{"code":"RATELIMITED"}}]}`)
		},
	}
}

// Linear's buckets refill all the time. A call that took the last of one waits for nothing, and a
// refused call waits for what the next call needs, not until the bucket is full again.
func TestLinear_BucketsAreNoWindows(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation of what shorter tests do, too")
	}
	for name, c := range map[string]struct {
		rate, points float64 // our rate per hour, and what each query costs
		has          float64 // queries per hour that the API allows
		used         float64 // part of these in the second hour
		refused      float64 // part of all calls
	}{
		"twice the right limit":  {rate: 5000, points: 2, has: 2500, used: 0.99, refused: 0.02},
		"not that of complexity": {rate: 2500, points: 2400, has: 1250, used: 0.99, refused: 0.04},
	} {
		bubble(t, name, func(t *testing.T) {
			api := linear(c.points)
			begin := time.Now()
			callers(t, 1, &transport.Transport{Base: api, Profile: profile.Linear}, outbound.PerHour(c.rate), 2*time.Hour)
			used := admitted(api, begin.Add(time.Hour), time.Hour) / c.has
			r := api.Report()
			refused := float64(r.Refused) / float64(r.Arrivals)
			t.Logf("%.1f %% used, %.1f %% refused", 100*used, 100*refused)
			errorIf(t, used < c.used || refused > c.refused,
				"missed: %.0f %% used, %.0f %% refused", 100*c.used, 100*c.refused)
		})
	}
}

// The limit of one query is not the account's.
func TestLinear_RefusedQuerySlowsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, b := linear(1), bucket(slow)
		rt := &transport.Transport{Base: api, Limiter: b, Profile: profile.Linear}
		for range 33 {
			trip(t, rt) // to /search
		}
		if s := stateOf(t, b); s.HeldFor > 0 || s.Speed != 1 || api.Report().Refused != 3 {
			t.Errorf("held for %v at speed %v, %d refused; want no hold, full speed, 3 refused", s.HeldFor, s.Speed, api.Report().Refused)
		}
	})
}

// wire is a network with a round trip, in the fake time of a bubble. It has one server.
type wire struct {
	trip     time.Duration
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (w *wire) Accept() (net.Conn, error) {
	select {
	case c := <-w.incoming:
		return c, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *wire) Close() error { w.once.Do(func() { close(w.closed) }); return nil }

func (w *wire) Addr() net.Addr { return &net.TCPAddr{} }

// dial opens a connection, which takes a round trip.
func (w *wire) dial(context.Context, string, string) (net.Conn, error) {
	client, near := net.Pipe()
	far, server := net.Pipe()
	go w.carry(near, far)
	go w.carry(far, near)
	time.Sleep(w.trip)
	w.incoming <- server
	return client, nil
}

// carry moves what is written to one end to the other, half a round trip later.
func (w *wire) carry(from, to net.Conn) {
	type chunk struct {
		data []byte
		due  time.Time
	}
	chunks := make(chan chunk, 1000)
	go func() {
		defer to.Close()
		for c := range chunks {
			time.Sleep(time.Until(c.due))
			if _, err := to.Write(c.data); err != nil {
				break
			}
		}
		for range chunks {
		}
	}()
	defer close(chunks)
	for {
		b := make([]byte, 64<<10)
		n, err := from.Read(b)
		if chunks <- (chunk{b[:n], time.Now().Add(w.trip / 2)}); err != nil {
			return
		}
	}
}

// serve has the API answer over TLS on a wire, and returns an http.Transport to it.
func serve(t *testing.T, api http.Handler, trip time.Duration, two bool, idle int) *http.Transport {
	w := &wire{trip: trip, incoming: make(chan net.Conn), closed: make(chan struct{})}
	s := &httptest.Server{Listener: w, EnableHTTP2: two, Config: &http.Server{Handler: api, ErrorLog: log.New(io.Discard, "", 0)}}
	s.StartTLS()
	base := &http.Transport{
		DialContext: w.dial, ForceAttemptHTTP2: two, MaxIdleConnsPerHost: idle,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Time: time.Now}, //nolint:gosec
	}
	t.Cleanup(func() {
		base.CloseIdleConnections()
		s.Close()
	})
	return base
}

// cold is an API of a strict window, over TLS.
type cold struct {
	n      float64
	window time.Duration
	trip   time.Duration
	two    bool // HTTP/2
	idle   int  // the most connections that stay open over HTTP/1
}

// run lets bursts of so many calls go, a minute after each other, and reports how long the longest
// has taken.
func (c cold) run(t *testing.T, bursts, calls int, limiter func(outbound.Limit) outbound.Limiter) (longest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		api := &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(c.n, c.window)}}
		base := serve(t, api, c.trip, c.two, c.idle)
		rt := &transport.Transport{Base: base, Limiter: limiter(outbound.Window(c.n, c.window))}
		for range bursts {
			begin := time.Now()
			check(t, together(calls, func() error { _, err := getURL(t.Context(), rt, "https://api"); return err }))
			longest = max(longest, time.Since(begin))
			base.CloseIdleConnections()
			time.Sleep(time.Minute)
		}
		r := api.Report()
		errorIf(t, r.Refused != 0 || r.Admitted != bursts*calls, "%+v: %+v", c, r)
	})
	return longest
}

func queued(l outbound.Limit) outbound.Limiter { return queue.New(bucket(l), queue.Config{}) }

func overStore(l outbound.Limit) outbound.Limiter {
	return queue.New(outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "api", l)), queue.Config{})
}

// unqueued asks a bucket again when it says that a call can leave.
type unqueued struct{ *outbound.Bucket }

func (u unqueued) Acquire(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
	for {
		p, err := u.Bucket.Acquire(ctx, c)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok {
			return p, err
		}
		time.Sleep(full.RetryAfter)
	}
}

// A burst that opens its connections, at the start and after they were closed, does not reach the
// API together with the calls of the next window.
func TestCold_BurstIsNeverRefused(t *testing.T) {
	limiters := map[string]func(outbound.Limit) outbound.Limiter{
		"queue": queued, "store": overStore, "bucket": func(l outbound.Limit) outbound.Limiter { return unqueued{bucket(l)} },
	}
	for _, c := range []cold{
		{n: 20, window: time.Second, trip: 5 * time.Millisecond},
		{n: 20, window: time.Second, trip: 15 * time.Millisecond},
		{n: 20, window: time.Second, trip: 200 * time.Millisecond},
		{n: 100, window: 10 * time.Second, trip: 50 * time.Millisecond},
	} {
		for name, limiter := range limiters {
			for _, two := range []bool{false, true} {
				c.two, c.idle = two, int(c.n)
				if name != "queue" && c.n > 20 || raced && (c.trip < 20*time.Millisecond || !two) {
					continue
				}
				t.Run(fmt.Sprintf("%s, %+v", name, c), func(t *testing.T) {
					took := c.run(t, 2, 4*int(c.n), limiter)
					ideal := 3*(c.window+10*time.Millisecond) + 4*c.trip
					errorIf(t, took > ideal+2*c.trip+c.window/64, "took %v, ideal %v", took, ideal)
				})
			}
		}
	}
}

// Where each burst opens new connections, that costs no more than 2 % of the quota.
func TestCold_AlwaysColdCostsLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation of what shorter tests do, too")
	}
	c := cold{n: 20, window: time.Second, trip: 100 * time.Millisecond, idle: -1}
	const windows = 60
	took := c.run(t, 1, 20*windows, queued)
	ideal := (windows - 1) * 1010 * time.Millisecond
	errorIf(t, took > ideal+ideal/50+5*c.trip, "took %v, ideal %v", took, ideal)
}
