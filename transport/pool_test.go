package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// keyLog is an API that records the keys of its requests.
type keyLog struct {
	takes  time.Duration
	status func(key string) int // nil: 200

	mu   sync.Mutex
	keys []string
}

func (l *keyLog) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	key, status := strings.TrimPrefix(req.Header.Get("Authorization"), "Bearer "), 200
	l.keys = append(l.keys, key)
	if l.status != nil {
		status = l.status(key)
	}
	return answer(status, http.NoBody)(req)
}

// take returns the keys of the requests since the last time.
func (l *keyLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := l.keys
	l.keys = nil
	return keys
}

// count returns how many requests each key has sent since the last time.
func (l *keyLog) count() map[string]int {
	times := map[string]int{}
	for _, key := range l.take() {
		times[key]++
	}
	return times
}

// keys returns n members of 60 requests a minute each, behind queues, and their buckets. If s is not
// nil, the buckets are in that store.
func keys(n int, api http.RoundTripper, s store.Store) (all []*transport.Transport, buckets []*outbound.Bucket) {
	for i := range n {
		name := fmt.Sprint("key ", i)
		b := outbound.Must(outbound.NewBucket(name, outbound.PerMinute(60)))
		if s != nil {
			b = outbound.Must(outbound.NewSharedBucket(s, name, outbound.PerMinute(60)))
		}
		buckets = append(buckets, b)
		all = append(all, &transport.Transport{Limiter: queue.New(b, queue.Config{}), Base: withKey{name, api}})
	}
	return all, buckets
}

// sent sends n requests at the same time, and returns when each was answered, in order. The status
// does not matter.
func sent(t *testing.T, rt http.RoundTripper, n int) []time.Duration {
	t.Helper()
	all := make([]time.Duration, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() {
			check(t, fetch(t, rt, "http://api.test/"))
			all[i] = time.Since(start)
		})
	}
	wg.Wait()
	slices.Sort(all)
	return all
}

// perKey is an API of n calls a minute for each key.
func perKey(n int) *outboundtest.API {
	return &outboundtest.API{Rules: []outboundtest.Rule{outboundtest.SlidingLog(float64(n), time.Minute).
		By(func(req *http.Request) string { return req.Header.Get("Authorization") })}}
}

func wantNoneRefused(t *testing.T, api *outboundtest.API) {
	t.Helper()
	r := api.Report()
	errorIf(t, r.Refused > 0, "%d of %d refused", r.Refused, r.Arrivals)
}

// Which member of a pool sends a request.
func TestPool_ChoosesTheMember(t *testing.T) {
	bubble(t, "A pool of five keys sends five times as much as one key, and no key more than its limit", func(t *testing.T) {
		// A request that looks at a member while another one leaves there may choose it for one too many: that is a
		// second.
		api := perKey(60)
		one, _ := keys(1, api, nil)
		alone := sent(t, one[0], 300)
		time.Sleep(time.Hour)
		five, _ := keys(5, api, nil)
		all := sent(t, &transport.Pool{Members: five}, 5*300)
		t.Logf("300 by one key in %v, 1,500 by five in %v", alone[299], all[5*300-1])
		errorIf(t, all[5*300-1] > alone[299]+time.Second+10*time.Millisecond,
			"1,500 requests took %v; one key takes %v for 300", all[len(all)-1], alone[299])
		wantNoneRefused(t, api)
	})
	bubble(t, "All requests with one key go to one member, in each process, while it can send them within Slack. Further ones go to a second one", func(t *testing.T) {
		api := &keyLog{}
		pool := func() *transport.Pool {
			members, _ := keys(5, api, nil)
			return &transport.Pool{Members: members, Slack: 5 * time.Second, Stick: func(req *http.Request) string { return req.URL.Path }}
		}
		homes, distinct := map[string]string{}, map[string]bool{}
		for range 2 { // processes
			p := pool()
			for range 20 {
				for _, path := range []string{"/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h"} {
					_ = fetch(t, p, "http://api.test"+path)
					key := api.take()[0]
					home := homes[path]
					fatalIf(t, home != "" && home != key, "%s went by %s and by %s", path, home, key)
					homes[path], distinct[key] = key, true
				}
				time.Sleep(8 * time.Second)
			}
		}
		errorIf(t, len(distinct) < 3, "8 keys use %d of 5 members", len(distinct))
		p, home := pool(), homes["/a"]
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { _ = fetch(t, p, "http://api.test/a") })
			synctest.Wait()
		}
		wg.Wait()
		if times := api.count(); times[home] != 5 || len(times) != 3 { // at 0 to 4 s
			t.Errorf("a burst of one key used the members %v, its own is %s", times, home)
		}
		time.Sleep(time.Minute)
		_ = fetch(t, p, "http://api.test/a")
		equal(t, api.take()[0], home, "after the burst the key is at")
	})
	bubble(t, "A status from 400 on that all members answer to the same requests, and a caller who hangs up, rest no member", func(t *testing.T) {
		api := &keyLog{takes: 20 * time.Millisecond}
		n := 0
		api.status = func(string) int { n++; return []int{200, 404, 404, 400, 200, 404, 409}[n*n%7] }
		members, _ := keys(3, api, nil)
		pool := &transport.Pool{Members: members}
		answered := sent(t, pool, 180)
		if took := answered[179]; took > 70*time.Second { // with a member that rests it is 90 s
			t.Errorf("180 requests by three members of 60 a minute took %v", took)
		}
		for range 100 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_ = get(ctx, pool)
			cancel()
			time.Sleep(time.Second)
		}
		api.take()
		sent(t, pool, 30)
		times := api.count()
		errorIf(t, len(times) != 3, "after callers that hang up: %v", times) // a member that rests gets none
	})
	bubble(t, "A request that a limiter inside of a member's Base refuses goes to another member, and arrives whole", func(t *testing.T) {
		// If its body cannot be read again, it stays, and its refusal comes back.
		var bodies []string
		members, _ := keys(2, roundTripper(func(req *http.Request) (*http.Response, error) {
			text, _ := io.ReadAll(req.Body)
			bodies = append(bodies, string(text))
			return answer(200, http.NoBody)(req)
		}), nil)
		inner := outbound.Must(outbound.NewBucket("inner", outbound.Per(1, time.Hour)))
		must(inner.Acquire(t.Context(), outbound.Cost{1}))
		members[0].Base = between{&transport.Transport{Limiter: inner, Base: members[0].Base}, func(inside http.RoundTripper, req *http.Request) (*http.Response, error) {
			_, _ = req.Body.Read(make([]byte, 3)) // as one that signs requests does
			return inside.RoundTrip(req)
		}}
		for _, again := range []bool{true, false} {
			pool := &transport.Pool{Members: members}
			var body io.Reader = strings.NewReader("all of it")
			if !again {
				body = io.NopCloser(body)
			}
			req := newRequest(t, body)
			resp, err := pool.RoundTrip(req)
			full, refused := errors.AsType[*outbound.ThrottledError](err)
			switch {
			case again && (err != nil || resp.StatusCode != 200 || resp.Request != req || len(bodies) != 1 || bodies[0] != "all of it"):
				t.Errorf("%v, got %q", err, bodies)
			case !again && (!refused || full.Key != "inner" || len(bodies) != 1):
				t.Errorf("a body that cannot be read again: %v, got %q", err, bodies)
			}
			time.Sleep(time.Minute)
		}
	})
	bubble(t, "A refusal of one member holds that member, and not the limiter of a transport around the pool", func(t *testing.T) {
		members, buckets := keys(2, &keyLog{status: func(key string) int {
			if key == "key 0" {
				return 429
			}
			return 200
		}}, nil)
		all := bucket(outbound.PerSecond(10))
		around := &transport.Transport{Limiter: queue.New(all, queue.Config{}), Base: &transport.Pool{Members: members}}
		for range 2 {
			trip(t, around)
		}
		for i, b := range append(buckets, all) {
			s := stateOf(t, b)
			errorIf(t, (s.HeldFor > 0) != (i == 0), "bucket %d is held for %v", i, s.HeldFor)
		}
	})
}

// Requests that wait at a member which is then held move to the others, in one process and in two
// whose buckets are in a store.
func TestPool_WaitersOfAHeldMemberMove(t *testing.T) {
	for name, processes := range map[string]int{"alone": 1, "shared": 2} {
		bubble(t, name, func(t *testing.T) {
			api := perKey(60)
			var s store.Store
			if processes > 1 {
				s = &distant{Store: store.NewMemory()}
			}
			answered := make(chan []time.Duration)
			for p := range processes {
				members, buckets := keys(5, api, s)
				if p == 0 {
					time.AfterFunc(500*time.Millisecond, func() {
						check(t, buckets[2].Hold(context.Background(), time.Minute))
					})
				}
				go func() { answered <- sent(t, &transport.Pool{Members: members}, 300/processes) }()
			}
			var all []time.Duration
			for range processes {
				all = append(all, <-answered...)
			}
			slices.Sort(all)
			// Four members send 4 a second until the hold is over at 60.5 s, and five send 5.
			ideal := 71 * time.Second
			errorIf(t, all[297] > ideal*11/10, "p99 %v, ideal %v", all[297], ideal)
			wantNoneRefused(t, api)
			time.Sleep(time.Second) // the last requests to the store end
		})
	}
}

// A member whose API answers 401 or 403 rests from the second answer on, and what waited there moves.
// If all members rest, none does.
func TestPool_UnauthorizedRestsAMember(t *testing.T) {
	for _, code := range []int{401, 403} {
		synctest.Test(t, func(t *testing.T) {
			bad := map[string]bool{"key 1": true}
			api := &keyLog{takes: 100 * time.Millisecond, status: func(key string) int {
				if bad[key] {
					return code
				}
				return 200
			}}
			members, _ := keys(3, api, nil)
			pool := &transport.Pool{Members: members}
			sent(t, pool, 30)
			if times := api.count(); times["key 1"] > 6 || times["key 0"] < 12 || times["key 2"] < 12 {
				t.Errorf("%d: %v", code, times) // at 0, 1, 2, 4, 8 and 12 s
			}
			bad["key 0"], bad["key 2"] = true, true
			for range 3 {
				sent(t, pool, 3)
			}
			api.take()
			time.Sleep(10 * time.Second)
			sent(t, pool, 3)
			times := api.count()
			errorIf(t, len(times) != 3, "%d: all rest: %v", code, times)
		})
	}
}

// What a request returns that no member sends.
func TestPool_NoMemberSends(t *testing.T) {
	bubble(t, "If all members refuse a request, the error is the one with the least RetryAfter, and the body is closed. OnRefusal of that member is asked", func(t *testing.T) {
		api := &keyLog{}
		pool := &transport.Pool{}
		for i, every := range []time.Duration{time.Hour, time.Second, time.Minute} {
			b := outbound.Must(outbound.NewBucket(fmt.Sprint(i), outbound.Per(1, every)))
			pool.Members = append(pool.Members, &transport.Transport{Limiter: b, Base: api})
		}
		for range 3 {
			trip(t, pool)
		}
		body := newBody("x")
		req := newRequest(t, body)
		_, err := pool.RoundTrip(req)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		errorIf(t, !ok || full.Key != "1" || full.RetryAfter > 1100*time.Millisecond || full.RetryAfter < 900*time.Millisecond,
			"%v", err)
		errorIf(t, body.closed.Load() != 1 || len(api.take()) != 3,
			"the body is not closed, or the request was sent")
		pool.Members[1].OnRefusal = transport.TooManyRequests
		resp := open(t, t.Context(), pool)
		errorIf(t, resp.StatusCode != 429, "OnRefusal: %d", resp.StatusCode)
		_, err = new(transport.Pool).RoundTrip(req)
		errorIf(t, !errors.Is(err, outbound.ErrInvalid), "no members: %v", err)
	})
	bubble(t, "A request whose context ends before any member can send it is refused immediately, and one whose context is cancelled while it waits gets the context's error", func(t *testing.T) {
		members, _ := keys(2, &keyLog{}, nil)
		pool := &transport.Pool{Members: members}
		done := make(chan bool)
		go func() {
			sent(t, pool, 40)
			done <- true
		}()
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := get(ctx, pool); !errors.Is(err, outbound.ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel = context.WithCancel(t.Context())
		time.AfterFunc(5*time.Second, cancel)
		if err := get(ctx, pool); !errors.Is(err, context.Canceled) || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		<-done
	})
}
