package transport_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/queue"
	"github.com/dripfeed/dripfeed/transport"
)

// log is an API that notes the keys of its requests, and answers by a function.
type log struct {
	takes  time.Duration
	mu     sync.Mutex
	keys   []string
	answer func(*http.Request) *http.Response // nil: 200
}

func (l *log) RoundTrip(req *http.Request) (*http.Response, error) {
	time.Sleep(l.takes)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys = append(l.keys, req.Header.Get("Authorization"))
	if req.Body != nil {
		defer req.Body.Close()
	}
	if l.answer != nil {
		if resp := l.answer(req); resp != nil {
			return resp, nil
		}
	}
	return status(200), nil
}

func status(code int) *http.Response {
	return &http.Response{StatusCode: code, Header: http.Header{}, Body: http.NoBody}
}

// take returns the keys of the requests so far.
func (l *log) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	keys := l.keys
	l.keys = nil
	return keys
}

func fetch(t *testing.T, rt http.RoundTripper, path string) int {
	t.Helper()
	resp, err := (&http.Client{Transport: rt}).Get("http://api.test" + path)
	if err != nil {
		t.Error(err)
		return 0
	}
	resp.Body.Close()
	return resp.StatusCode
}

// All requests with one key go to one member, in each process, while it can send them within Slack.
// Further ones go to a second one.
func TestPool_StickKeepsAKeyAtItsMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &log{}
		pool := func() *transport.Pool {
			members, _ := keys(5, api)
			return &transport.Pool{Members: members, Slack: 5 * time.Second, Stick: func(req *http.Request) string { return req.URL.Path }}
		}
		homes := map[string]string{}
		for range 2 { // processes
			p := pool()
			for range 20 {
				for _, path := range []string{"/a", "/b", "/c", "/d", "/e", "/f", "/g", "/h"} {
					fetch(t, p, path)
					key := api.take()[0]
					if home := homes[path]; home != "" && home != key {
						t.Fatalf("%s went by %s and by %s", path, home, key)
					}
					homes[path] = key
				}
				time.Sleep(8 * time.Second)
			}
		}
		distinct := map[string]bool{}
		for _, key := range homes {
			distinct[key] = true
		}
		if len(distinct) < 3 {
			t.Errorf("8 keys use %d of 5 members", len(distinct))
		}

		p, times := pool(), map[string]int{}
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { fetch(t, p, "/a") })
			synctest.Wait()
		}
		wg.Wait()
		for _, key := range api.take() {
			times[key]++
		}
		if times[homes["/a"]] != 5 || len(times) != 3 { // at 0 to 4 s
			t.Errorf("a burst of one key used the members %v, its own is %s", times, homes["/a"])
		}
		time.Sleep(time.Minute)
		fetch(t, p, "/a")
		if key := api.take()[0]; key != homes["/a"] {
			t.Errorf("after the burst the key is at %s", key)
		}
	})
}

// A member whose API answers 401 or 403 gets no request for a minute, also none that waited there.
// If all members rest, none does.
func TestPool_UnauthorizedRestsAMember(t *testing.T) {
	for _, code := range []int{401, 403} {
		synctest.Test(t, func(t *testing.T) {
			bad := map[string]bool{"key 1": true}
			api := &log{takes: 100 * time.Millisecond, answer: func(req *http.Request) *http.Response {
				if bad[req.Header.Get("Authorization")] {
					return status(code)
				}
				return nil
			}}
			members, _ := keys(3, api)
			pool := &transport.Pool{Members: members}
			sentAll := func(n int) (times map[string]int) {
				var wg sync.WaitGroup
				for range n {
					wg.Go(func() { fetch(t, pool, "/") })
				}
				wg.Wait()
				times = map[string]int{}
				for _, key := range api.take() {
					times[key]++
				}
				return times
			}
			if times := sentAll(30); times["key 1"] != 1 || times["key 0"] < 14 || times["key 2"] < 14 {
				t.Errorf("%d: %v", code, times)
			}
			time.Sleep(time.Minute)
			if times := sentAll(3); times["key 1"] != 1 {
				t.Errorf("%d: a minute later: %v", code, times)
			}
			bad["key 0"], bad["key 2"] = true, true
			sentAll(2)
			time.Sleep(10 * time.Second)
			if times := sentAll(3); len(times) != 3 {
				t.Errorf("%d: all rest: %v", code, times)
			}
		})
	}
}

// What the other members say is the error of a request that waited at a member which rests now.
func TestPool_RestIsNoError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		members, _ := keys(1, &log{takes: 100 * time.Millisecond, answer: func(*http.Request) *http.Response { return status(401) }})
		pool := &transport.Pool{Members: append(members, &transport.Transport{Limiter: failing{}})}
		go fetch(t, pool, "/")
		time.Sleep(10 * time.Millisecond)
		req, _ := http.NewRequest(http.MethodGet, "http://api.test/", nil)
		if _, err := pool.RoundTrip(req); err != errFailing {
			t.Error(err)
		}
	})
}

// failing is a limiter that fails, and seems to be free later.
type failing struct{}

var errFailing = errors.New("failing")

func (failing) Acquire(context.Context, outbound.Cost) (outbound.Permit, error) {
	return outbound.Permit{}, errFailing
}

func (failing) Explain(context.Context, outbound.Cost) (outbound.Explanation, error) {
	return outbound.Explanation{Wait: time.Hour}, nil
}

// If all members refuse a request, the error is the one with the least RetryAfter, and the body is
// closed. OnRefusal of that member is asked.
func TestPool_AllRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &log{}
		pool := &transport.Pool{}
		for i, every := range []time.Duration{time.Hour, time.Second, time.Minute} {
			b := outbound.Must(outbound.NewBucket(fmt.Sprint(i), outbound.Per(1, every)))
			pool.Members = append(pool.Members, &transport.Transport{Limiter: b, Base: api})
		}
		for range 3 {
			fetch(t, pool, "/")
		}
		body := &closed{Reader: strings.NewReader("x")}
		req, _ := http.NewRequest(http.MethodPost, "http://api.test/", body)
		_, err := pool.RoundTrip(req)
		full, ok := errors.AsType[*outbound.ThrottledError](err)
		if !ok || full.Key != "1" || full.RetryAfter > 1100*time.Millisecond || full.RetryAfter < 900*time.Millisecond {
			t.Errorf("%v", err)
		}
		if !body.closed || len(api.take()) != 3 {
			t.Error("the body is not closed, or the request was sent")
		}
		pool.Members[1].OnRefusal = transport.TooManyRequests
		if code := fetch(t, pool, "/"); code != 429 {
			t.Errorf("OnRefusal: %d", code)
		}

		if _, err := new(transport.Pool).RoundTrip(req); !errors.Is(err, outbound.ErrInvalid) {
			t.Errorf("no members: %v", err)
		}
	})
}

// A request whose context ends before any member can send it is refused immediately, and one whose
// context is cancelled while it waits gets the context's error.
func TestPool_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &log{}
		members, _ := keys(2, api)
		pool := &transport.Pool{Members: members}
		done := make(chan bool)
		go func() {
			sent(t, pool, 40)
			done <- true
		}()
		synctest.Wait()
		start := time.Now()
		within := func(ctx context.Context) error {
			req, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://api.test/", nil)
			_, err := pool.RoundTrip(req)
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := within(ctx); !errors.Is(err, outbound.ErrThrottled) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		ctx, cancel = context.WithCancel(context.Background())
		time.AfterFunc(5*time.Second, cancel)
		if err := within(ctx); err != context.Canceled || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		<-done
	})
}

// closed is a body that notes its Close.
type closed struct {
	io.Reader
	closed bool
}

func (c *closed) Close() error {
	c.closed = true
	return nil
}

// A request that a limiter inside of a member's Base refuses goes to another member, and arrives
// whole. If its body cannot be read again, it stays, and its refusal comes back.
func TestPool_ABodyThatCannotBeReadAgainIsNotMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies []string
		api := &log{answer: func(req *http.Request) *http.Response {
			text, _ := io.ReadAll(req.Body)
			bodies = append(bodies, string(text))
			return nil
		}}
		inner := outbound.Must(outbound.NewBucket("inner", outbound.Per(1, time.Hour)))
		if _, err := inner.Acquire(context.Background(), outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		members, _ := keys(2, api)
		members[0].Base = reads{&transport.Transport{Limiter: inner, Base: members[0].Base}}
		for _, again := range []bool{true, false} {
			pool := &transport.Pool{Members: members}
			var body io.Reader = strings.NewReader("all of it")
			if !again {
				body = io.NopCloser(body)
			}
			req, _ := http.NewRequest(http.MethodPost, "http://api.test/", body)
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
}

// reads reads some of a body before it hands the request on, as one that signs requests does.
type reads struct{ *transport.Transport }

func (r reads) Unwrap() http.RoundTripper { return r.Transport }

func (r reads) RoundTrip(req *http.Request) (*http.Response, error) {
	_, _ = req.Body.Read(make([]byte, 3))
	return r.Transport.RoundTrip(req)
}

// A refusal of one member holds that member, and not the limiter of a transport around the pool.
func TestPool_MembersJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &log{answer: func(req *http.Request) *http.Response {
			if req.Header.Get("Authorization") == "key 0" {
				return status(429)
			}
			return nil
		}}
		members, buckets := keys(2, api)
		all := outbound.Must(outbound.NewBucket("all", outbound.PerSecond(10)))
		around := &transport.Transport{Limiter: queue.New(all, queue.Config{}), Base: &transport.Pool{Members: members}}
		for range 2 {
			fetch(t, around, "/")
		}
		for i, b := range append(buckets, all) {
			s, err := b.State(context.Background())
			if err != nil || (s.HeldFor > 0) != (i == 0) {
				t.Errorf("bucket %d is held for %v: %v", i, s.HeldFor, err)
			}
		}
	})
}
