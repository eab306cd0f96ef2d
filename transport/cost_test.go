package transport

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
)

// do makes a round trip under a context and reads the body, as a library does that hides
// both.
func do(t *testing.T, ctx context.Context, rt http.RoundTripper) error {
	t.Helper()
	resp, err := rt.RoundTrip(newRequest(t, nil).WithContext(ctx))
	if err != nil {
		return err
	}
	if _, err = io.Copy(io.Discard, resp.Body); err != nil {
		t.Error(err)
	}
	return resp.Body.Close()
}

func TestWithCostIsSettledWhenTheCallHasReturned(t *testing.T) {
	for name, limits := range map[string][]outbound.Limit{
		"one limit":     {{Capacity: 10, LeakRate: 1}},
		"two limits":    {{Capacity: 10, LeakRate: 1}, {Capacity: 10, LeakRate: 1, Name: "other"}},
		"calls at once": {{Capacity: 10, LeakRate: 1}, outbound.InFlight(1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := outbound.Must(outbound.NewBucket("tokens", limits...))
				rt := &Transport{Base: answer(200, newBody("text")), Limiter: b, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{99} }}
				ctx, permit := WithCost(t.Context(), outbound.Cost{10})
				if err := do(t, ctx, rt); err != nil {
					t.Fatal(err)
				}
				if !full(t, b) {
					t.Fatal("the cost was not taken")
				}
				permit.Settle(outbound.Cost{4})
				permit.Settle(outbound.Cost{}) // the first settle counts
				if _, err := b.Acquire(t.Context(), outbound.Cost{6}); err != nil {
					t.Errorf("what was not used has not come back: %v", err)
				}
				if !full(t, b) {
					t.Error("more came back than was not used")
				}
			})
		})
	}
}

func TestWithCostHasNothingToDoBeforeARequestIsAdmitted(t *testing.T) {
	r := new(recorder)
	ctx, permit := WithCost(t.Context(), outbound.Cost{3})
	permit.Settle(outbound.Cost{1})
	permit.Refused(time.Second)
	permit.Hold(time.Second)
	permit.Done()
	if err := do(t, ctx, &Transport{Base: answer(200, newBody("x")), Limiter: refusing{io.EOF}}); err != io.EOF {
		t.Errorf("refused: %v", err)
	}
	permit.Settle(outbound.Cost{1})
	if err := do(t, ctx, &Transport{Base: answer(200, newBody("x")), Limiter: r}); err != nil {
		t.Error(err)
	}
	permit.Settle(outbound.Cost{2})
	if got := r.heard(); got != "acquire 3, done, settle 2" {
		t.Errorf("heard %q", got)
	}
}

func TestWithCostStandsForTheLastAttempt(t *testing.T) {
	first, second := new(recorder), new(recorder)
	ctx, permit := WithCost(t.Context(), outbound.Cost{3})
	for _, l := range []outbound.Limiter{first, second} {
		if err := do(t, ctx, &Transport{Base: answer(429, newBody("x")), Limiter: l}); err != nil {
			t.Fatal(err)
		}
	}
	permit.Settle(outbound.Cost{1})
	permit.Refused(3 * time.Hour)
	permit.Hold(3 * time.Hour)
	permit.Done()
	if got := first.heard(); got != "acquire 3, refused 0s, done" {
		t.Errorf("the first attempt heard %q", got)
	}
	if got := second.heard(); got != "acquire 3, refused 0s, done, settle 1, refused 1h0m0s, hold 1h0m0s" {
		t.Errorf("the second attempt heard %q", got)
	}

	// A hop that is not paced can be the last one, too.
	if err := do(t, ctx, &Transport{Base: answer(200, newBody("x"))}); err != nil {
		t.Fatal(err)
	}
	permit.Settle(outbound.Cost{2})
	if got := second.heard(); got != "" {
		t.Errorf("an attempt before the last heard %q", got)
	}
}

func TestDoneOfWithCostLeavesTheCallInProgress(t *testing.T) {
	b := slots(1)
	ctx, permit := WithCost(t.Context(), outbound.Cost{1})
	resp, err := (&Transport{Base: answer(200, newBody("x")), Limiter: b}).RoundTrip(newRequest(t, nil).WithContext(ctx))
	if err != nil {
		t.Fatal(err)
	}
	if permit.Done(); !full(t, b) {
		t.Error("the slot was freed while the body is open")
	}
	if err := resp.Body.Close(); err != nil || full(t, b) {
		t.Errorf("Close: %v, full %v", err, full(t, b))
	}
}

func TestInnermostWithCostCounts(t *testing.T) {
	r := new(recorder)
	outer, _ := WithCost(t.Context(), outbound.Cost{3})
	inner, _ := WithCost(outer, outbound.Cost{4})
	if err := do(t, inner, &Transport{Base: answer(200, newBody("x")), Limiter: r}); err != nil {
		t.Fatal(err)
	}
	if got := r.heard(); got != "acquire 4, done" {
		t.Errorf("heard %q", got)
	}
}

// Requests that share a context, as hedged ones do, and a user who settles too early do not
// race.
func TestWithCostMayBeSharedByConcurrentRequests(t *testing.T) {
	r := new(recorder)
	ctx, permit := WithCost(t.Context(), outbound.Cost{1})
	rt := &Transport{Limiter: r, Base: base(func(req *http.Request) (*http.Response, error) { return answer(200, newBody("text"))(req) })}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = do(t, ctx, rt) })
	}
	permit.Settle(outbound.Cost{2})
	all.Wait()
	r.heard()
	permit.Hold(time.Second)
	if got := r.heard(); got != "hold 1s" {
		t.Errorf("heard %q", got)
	}
}
