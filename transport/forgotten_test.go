package transport_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

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
			if !full(t, b) {
				t.Errorf("%s: the call has ended before", name)
			}
			if c.cancel {
				cancel()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if full(t, b) {
				t.Errorf("%s: the call has not ended", name)
			}
			open(t, t.Context(), text(b))
			if resp.Body.Close(); !full(t, b) {
				t.Errorf("%s: the late Close has ended another call", name)
			}
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
	if n := ctx.waiting.Load(); n != 1 {
		t.Fatalf("%d wait for the context of a call in progress, want 1", n)
	}
	resp.Body.Close()
	resp.Body.Close()
	open(t, ctx, &transport.Transport{Base: answer(200, newBody("text")), OnResponse: ignore})
	if n := ctx.waiting.Load(); n != 0 {
		t.Errorf("%d wait for the context of a call that has ended, or frees nothing", n)
	}
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
				if i == 2000 {
					t.Fatalf("not after %d collections", i)
				}
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
