package retry

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// fault is how a member of a pool fails.
type fault struct {
	name string
	fail func(*http.Request) (*http.Response, error)
	// takes is how long that takes, which one call of each caller waits for.
	takes time.Duration
	// holds is true if the member's bucket is held for longer than the fault lasts.
	holds bool
	// returned is true if the client returns the answer as it is, until the pool has its five.
	returned bool
}

func answers(status int, body string, header ...string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &http.Response{StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: h, ContentLength: -1,
			Body: io.NopCloser(strings.NewReader(body)), Request: req}, nil
	}
}

func breaks(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func hangs(req *http.Request) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

func slow(req *http.Request) (*http.Response, error) {
	select {
	case <-time.After(3 * time.Second):
		return answers(200, "{}")(req)
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
}

var faults = []fault{
	{name: "500", fail: answers(500, "{}")},
	{name: "501", fail: answers(501, "{}")},
	{name: "503", fail: answers(503, "{}")},
	{name: "refused", fail: breaks(syscall.ECONNREFUSED)},
	{name: "reset", fail: breaks(syscall.ECONNRESET)},
	{name: "timeout", fail: hangs, takes: 5 * time.Second},
	{name: "slow", fail: slow, takes: 3 * time.Second, returned: true},
	{name: "torn", returned: true, fail: func(req *http.Request) (*http.Response, error) {
		resp, _ := answers(200, "")(req)
		resp.Body = io.NopCloser(io.MultiReader(strings.NewReader("{"), iotest.ErrReader(io.ErrUnexpectedEOF)))
		return resp, nil
	}},
	{name: "401", fail: answers(401, "{}")},
	{name: "403", fail: answers(403, "{}")},
	{name: "404", returned: true, fail: answers(404, `{"error":{"code":"DeploymentNotFound"}}`)},
	{name: "429", holds: true, fail: answers(429, "{}")},
	{name: "429 with a time", holds: true, fail: answers(429, "{}", "Retry-After", "60")},
	{name: "no credit", holds: true, fail: answers(429, `{"error":{"code":"insufficient_quota","type":"insufficient_quota"}}`)},
}

// world is a run of programs with a pool each.
type world struct {
	name               string
	callers, processes int
	limit              outbound.Limit
	dead               []int // of three members
	fault              fault
	plain              bool          // without retries
	every              time.Duration // an open loop: a request each so often, instead of callers
	until              time.Duration // of the fault
	lasts              time.Duration

	mu       *sync.Mutex
	answered []time.Duration    // with 200 and a whole body
	at       [3][]time.Duration // what has reached each member
	good     [3][]time.Duration // what each member has answered well
}

func (w *world) run() {
	s := store.NewMemory()
	begin := time.Now()
	var all sync.WaitGroup
	for range w.processes {
		pool := &transport.Pool{}
		for i := range 3 {
			if w.until < 0 && slices.Contains(w.dead, i) {
				continue // to compare with
			}
			b := outbound.Must(outbound.NewBucket(fmt.Sprint(i), w.limit))
			if w.processes > 1 {
				b = outbound.Must(outbound.NewSharedBucket(s, fmt.Sprint(i), w.limit))
			}
			pool.Members = append(pool.Members, &transport.Transport{Timeout: 5 * time.Second, Limiter: queue.New(b, queue.Config{}),
				Base: base(func(req *http.Request) (*http.Response, error) { return w.serve(i, time.Since(begin), req) })})
		}
		client := &http.Client{Transport: pool}
		if !w.plain {
			client = NewClient(&transport.Transport{Base: pool}).StandardClient()
		}
		ask := func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
			resp, err := client.Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			if _, err := io.ReadAll(resp.Body); err == nil && resp.StatusCode == 200 {
				w.mu.Lock()
				w.answered = append(w.answered, time.Since(begin))
				w.mu.Unlock()
			}
		}
		for range w.callers {
			all.Go(func() {
				for time.Since(begin) < w.lasts {
					if w.every > 0 {
						all.Go(ask)
						time.Sleep(w.every)
						continue
					}
					ask()
					time.Sleep(200 * time.Millisecond)
				}
			})
		}
	}
	all.Wait()
}

func (w *world) serve(i int, at time.Duration, req *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.at[i] = append(w.at[i], at)
	w.mu.Unlock()
	if at < w.until && slices.Contains(w.dead, i) {
		return w.fault.fail(req)
	}
	select {
	case <-time.After(200 * time.Millisecond):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	w.mu.Lock()
	w.good[i] = append(w.good[i], at)
	w.mu.Unlock()
	return answers(200, "{}")(req)
}

// before returns how many times are below t.
func before(times []time.Duration, t time.Duration) (n int) {
	for _, at := range times {
		if at < t {
			n++
		}
	}
	return n
}

// A pool answers 98 % of what its healthy members alone answer, sends a dead one a probe a second at
// most, and uses it again within 5 s of its recovery. The faults are those of litellm#34836 and
// #3646, OmniRoute#495 and airbyte-python-cdk#1117, and their like.
func TestPool_DeadMembersCostNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("a long simulation: others race what it runs")
	}
	per, flight := outbound.PerSecond(10), outbound.InFlight(4)
	for _, w := range []world{
		{name: "a caller", callers: 1, processes: 1, limit: per},
		{name: "two processes", callers: 5, processes: 2, limit: per},
		{name: "many callers", callers: 50, processes: 1, limit: per},
		{name: "many in flight", callers: 20, processes: 2, limit: flight},
		{name: "an open loop", callers: 1, processes: 1, limit: per, every: 110 * time.Millisecond},
		{name: "no retries", callers: 5, processes: 1, limit: per, plain: true},
	} {
		for _, dead := range [][]int{{0}, {2}, {0, 1}} {
			w.dead, w.until, w.lasts = dead, -1, 14*time.Second
			alone := w
			alone.mu = new(sync.Mutex)
			synctest.Test(t, func(*testing.T) { alone.run() })
			for k, f := range faults {
				if raced && (k+len(dead)+w.callers)%4 > 0 { // each fault in some world
					continue
				}
				w := w
				w.mu, w.fault, w.until, w.lasts = new(sync.Mutex), f, 14*time.Second, 20*time.Second+f.takes
				synctest.Test(t, func(*testing.T) { w.run() })
				w.judge(t, before(alone.answered, w.until))
			}
		}
	}
}

// judge compares what was answered with what the healthy members answer alone.
func (w *world) judge(t *testing.T, want int) {
	name := fmt.Sprintf("%s, %s: dead %v", w.name, w.fault.name, w.dead)
	// What the callers wait for or get until they know each dead member.
	first := 1 + int(w.fault.takes/(400*time.Millisecond))
	if w.plain || w.fault.returned {
		first *= 2
	}
	first *= w.callers * w.processes * len(w.dead)
	if w.every > 0 {
		first = len(w.dead) * int(w.fault.takes/w.every/4+12)
	}
	if got := before(w.answered, w.until); float64(got) < 0.98*float64(want)-float64(first) {
		t.Errorf("%s: %d answered, the healthy members alone answer %d", name, got, want)
	}
	for _, i := range w.dead {
		at := w.at[i][:before(w.at[i], w.until)]
		if len(at) == 0 || w.fault.holds {
			continue
		}
		known := slices.IndexFunc(at, func(d time.Duration) bool { return d > at[0]+w.fault.takes+5*time.Second })
		for k := max(known, 0); known >= 0 && k < len(at); k++ {
			if n := before(at[k:], at[k]+time.Second); n > w.processes {
				t.Errorf("%s: member %d got %d probes in a second, %v", name, i, n, at)
				break
			}
		}
		if w.plain || (w.fault.takes > 0 || w.fault.returned) && w.callers < 20 {
			continue // there is no use for it, and a probe costs the caller something
		}
		if back := w.good[i]; len(back) == 0 || back[0] > w.until+w.fault.takes+5*time.Second {
			t.Errorf("%s: member %d is not back in time: %v", name, i, at[max(0, len(at)-5):])
		}
	}
}
