package transport_test

import (
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/transport"
)

// The permit of WithCost settles a call that has returned, once.
func TestWithCost_SettlesReturnedCall(t *testing.T) {
	ten := outbound.Limit{Capacity: 10, LeakRate: 1e-6}
	for name, b := range map[string]*outbound.Bucket{
		"one limit":  bucket(ten),
		"two limits": bucket(ten, outbound.Limit{Capacity: 20, LeakRate: 1e-6, Name: "other"}),
		"in flight":  bucket(ten, outbound.InFlight(1)),
	} {
		rt := &transport.Transport{Base: answer(200, newBody("text")), Limiter: b, Cost: func(*http.Request) outbound.Cost { return outbound.Cost{99} }}
		ctx, permit := transport.WithCost(t.Context(), outbound.Cost{10})
		finish(open(t, ctx, rt))
		if !full(t, b) {
			t.Errorf("%s: the cost was not charged", name)
		}
		permit.Settle(outbound.Cost{4})
		permit.Settle(outbound.Cost{}) // the first settle counts
		wantCharged(t, b, 4)
	}
}

// The permit of WithCost is that of the last admitted attempt, also of an unpaced one. Before there
// is one it has no effect. Done never has.
func TestWithCost_IsTheLastAttempts(t *testing.T) {
	first, second := new(recorder), new(recorder)
	outer, _ := transport.WithCost(t.Context(), outbound.Cost{9})
	ctx, permit := transport.WithCost(outer, outbound.Cost{3})
	use := func() {
		permit.Settle(outbound.Cost{1})
		permit.Refused(33 * time.Hour)
		permit.Hold(33 * time.Hour)
		permit.Done()
	}
	use()
	refused := &transport.Transport{Base: answer(200, newBody("x")), Limiter: refusing(io.EOF)}
	if _, err := refused.RoundTrip(newRequest(t, nil).WithContext(ctx)); err != io.EOF {
		t.Errorf("refused: %v", err)
	}
	use()
	for _, l := range []outbound.Limiter{first, second} {
		finish(open(t, ctx, &transport.Transport{Base: answer(429, newBody("x")), Limiter: l}))
	}
	use()
	if got := first.take(); got != "acquire 3, refused 0s, done" {
		t.Errorf("the first attempt recorded %q", got)
	}
	if got := second.take(); got != "acquire 3, refused 0s, done, settle 1, refused 24h0m0s, hold 24h0m0s" {
		t.Errorf("the second attempt recorded %q", got)
	}
	finish(open(t, ctx, &transport.Transport{Base: answer(200, newBody("x"))}))
	use()
	if got := second.take(); got != "" {
		t.Errorf("an attempt before the last recorded %q", got)
	}
}

// Done of the permit of WithCost leaves the call in flight until its body ends.
func TestWithCost_DoneLeavesCallInFlight(t *testing.T) {
	b := slots(1)
	ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
	resp := open(t, ctx, &transport.Transport{Base: answer(200, newBody("x")), Limiter: b})
	if permit.Done(); !full(t, b) {
		t.Error("the call has ended while its body is open")
	}
	if err := resp.Body.Close(); err != nil || full(t, b) {
		t.Errorf("Close: %v, full %v", err, full(t, b))
	}
}

// Requests that share a context, as hedged ones do, and a program that settles too early do not race.
func TestWithCost_ConcurrentRequestsMayShareIt(t *testing.T) {
	r := new(recorder)
	ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = get(ctx, &transport.Transport{Limiter: r, Base: answer(200, newBody("text"))}) })
	}
	permit.Settle(outbound.Cost{2})
	all.Wait()
	r.take()
	permit.Hold(time.Second)
	if got := r.take(); got != "hold 1s" {
		t.Errorf("recorded %q", got)
	}
}

// The permit of WithCost passes on the reason of a hold and what remains.
func TestWithCost_PassesOnReasonAndRemainder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(outbound.PerSecond(10))
		ctx, permit := transport.WithCost(t.Context(), outbound.Cost{1})
		finish(open(t, ctx, &transport.Transport{Base: answer(200, nil), Limiter: b}))
		for _, c := range []struct {
			answer outbound.Answer
			reason string
		}{
			{outbound.Answer{Kind: outbound.AnswerRemaining, Remaining: outbound.Cost{0, -1, -1, -1}, Wait: time.Minute}, "exhausted"},
			{outbound.Answer{Kind: outbound.AnswerHold, Wait: 2 * time.Minute, Reason: "quota"}, "quota"},
		} {
			permit.Answered(c.answer)
			if s := stateOf(t, b); s.HeldFor != c.answer.Wait || s.Reason != c.reason {
				t.Errorf("held for %v by %q, want %q", s.HeldFor, s.Reason, c.reason)
			}
		}
	})
}
