package transport

import (
	"context"
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// send makes a round trip under ctx and returns the response without closing it.
func send(t *testing.T, ctx context.Context, rt *Transport) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(newRequest(t, nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func TestForgottenBody_EndsWithTheRequestsContext(t *testing.T) {
	for name, end := range map[string]func(context.Context) (context.Context, func()){
		"cancelled": func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithCancel(ctx)
			return ctx, cancel
		},
		"deadline": func(ctx context.Context) (context.Context, func()) {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			return ctx, func() { time.Sleep(time.Minute); _ = cancel }
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := slots(1)
			ctx, end := end(t.Context())
			resp := send(t, ctx, &Transport{Base: answer(200, newBody("text")), Limiter: b})
			synctest.Wait()
			if !full(t, b) {
				t.Errorf("%s: the place was free before", name)
			}
			end()
			synctest.Wait()
			if full(t, b) {
				t.Errorf("%s: the place was not free after", name)
			}
			send(t, t.Context(), &Transport{Base: answer(200, newBody("text")), Limiter: b})
			resp.Body.Close()
			if !full(t, b) {
				t.Errorf("%s: the late Close has freed the place of another call", name)
			}
		})
	}
}

// The context of an upgrade is that of the handshake: libraries cancel it when they have the
// connection.
func TestAnUpgradedConnectionOutlivesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := slots(1)
		ctx, cancel := context.WithCancel(t.Context())
		resp := send(t, ctx, &Transport{Base: answer(101, &duplex{counted: newBody("hello")}), Limiter: b})
		cancel()
		synctest.Wait()
		if !full(t, b) {
			t.Error("the context has ended the connection's place")
		}
		resp.Body.Close()
		if full(t, b) {
			t.Error("closed, and the place is still taken")
		}
	})
}

// counting is a context that never ends and counts who waits for it.
type counting struct {
	context.Context
	done    chan struct{}
	waiting atomic.Int32
}

func (c *counting) Done() <-chan struct{} { return c.done }

func (c *counting) AfterFunc(func()) func() bool {
	c.waiting.Add(1)
	return func() bool { c.waiting.Add(-1); return true }
}

func TestACallThatHasEndedLeavesNothingWithItsContext(t *testing.T) {
	ctx := &counting{Context: context.Background(), done: make(chan struct{})}
	b := slots(9)
	rt := &Transport{Base: answer(200, newBody("text")), Limiter: b}
	resp := send(t, ctx, rt)
	if n := ctx.waiting.Load(); n != 1 {
		t.Fatalf("%d wait for the context of a call in progress, want 1", n)
	}
	resp.Body.Close()
	resp.Body.Close()
	if n := ctx.waiting.Load(); n != 0 {
		t.Errorf("%d wait for the context when the call has ended", n)
	}
	send(t, ctx, &Transport{Base: answer(200, newBody("text")), OnResponse: func(*http.Response, *outbound.Permit) {}})
	if n := ctx.waiting.Load(); n != 0 {
		t.Errorf("%d wait for a call that has no place", n)
	}
}

func TestAForgottenBodyIsCollectedAlthoughItsContextGoesOn(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := slots(1)
	func() {
		_, _ = io.ReadFull(send(t, ctx, &Transport{Base: answer(200, newBody("text")), Limiter: b}).Body, make([]byte, 2))
	}()
	collected(t, b)
}

func TestAForgottenBodyLeavesNothingWithItsContext(t *testing.T) {
	ctx := &counting{Context: context.Background(), done: make(chan struct{})}
	b := slots(1)
	send(t, ctx, &Transport{Base: answer(200, newBody("text")), Limiter: b})
	for range 2000 {
		runtime.GC()
		if ctx.waiting.Load() == 0 {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Errorf("%d wait for the context of what was collected", ctx.waiting.Load())
}

// net/http keeps the context of a request whose body nobody closes.
func TestForgottenBody_OfWithCostIsCollected(t *testing.T) {
	b := slots(1)
	ctx, p := WithCost(t.Context(), outbound.Cost{1})
	send(t, ctx, &Transport{Base: answer(200, newBody("text")), Limiter: b})
	p.Settle(outbound.Cost{1})
	collected(t, b)
	runtime.KeepAlive(ctx)
}

func TestAPermitOfWithCostSettlesAfterACollection(t *testing.T) {
	b := outbound.Must(outbound.NewBucket("api", outbound.InFlight(9), outbound.Limit{Capacity: 10, LeakRate: 1e-6}))
	ctx, p := WithCost(t.Context(), outbound.Cost{1})
	send(t, ctx, &Transport{Base: answer(200, newBody("text")), Limiter: b})
	for range 5 {
		runtime.GC()
	}
	p.Settle(outbound.Cost{7})
	if all, err := b.States(t.Context()); err != nil || all[0].Level < 6.9 {
		t.Errorf("settled to 7: %+v, %v", all, err)
	}
}

// collected waits until the garbage collector has found the place of a forgotten body.
func collected(t *testing.T, b *outbound.Bucket) {
	t.Helper()
	for range 200 {
		runtime.GC()
		if !full(t, b) {
			return
		}
		<-time.After(time.Millisecond)
	}
	t.Error("not after 200 collections")
}
