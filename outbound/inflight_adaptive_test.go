package outbound

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound/store"
)

// All refusals of calls that were admitted before a cut halve the limit once, and their successes do not
// raise it. It is never below 1.
func TestInFlight_AdaptiveHalvesOnceForManyRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("api", InFlight(64).Adaptive()))
		take := func(n int) (all []Permit) {
			for range n {
				all = append(all, admit(t, b, 1))
			}
			time.Sleep(time.Millisecond)
			return all
		}
		check := func(when string, want float64) {
			t.Helper()
			if n := states(t, b)[0].Limit.Capacity; n != want {
				t.Errorf("%v in flight after %s, want %v", n, when, want)
			}
		}
		for i, p := range take(64) {
			if time.Sleep(time.Millisecond); i%2 == 0 {
				p.Refused(time.Second)
			}
			p.Done()
			check("a refusal or a success", 32)
		}
		for _, want := range []float64{16, 8, 4, 2, 1, 1, 1} {
			time.Sleep(2 * time.Hour) // longer than any hold
			p := take(1)[0]
			p.Refused(time.Second)
			p.Done()
			check("another refusal", want)
		}
		time.Sleep(2 * time.Hour)
		for i, want := range []float64{2, 2, 3} { // as many successes as there are slots
			calls := take([]int{1, 2, 2}[i])
			calls[0].Done()
			check("a success", want)
			for _, p := range calls[1:] {
				p.Failed()
			}
		}
		for range 3 {
			take(1)[0].Done()
		}
		check("successes with slots to spare", 3)
		e, err := b.Explain(ctx, Cost{1})
		if err != nil || !strings.Contains(e.String(), `limit "64 in flight, adaptive": 0 of 3 calls in progress`) {
			t.Errorf("%v, %v", e, err)
		}
	})
}

// A bucket whose limit was halved is not idle for an hour.
func TestInFlight_AdaptiveIsKeptForAnHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := Must(NewBucket("api", InFlight(64).Adaptive()))
		p := admit(t, b, 1)
		p.Answered(Answer{Kind: AnswerHold, Wait: time.Second, Reason: "concurrency"})
		p.Done()
		for _, idle := range []bool{false, true} {
			if time.Sleep(50 * time.Minute); b.Idle() != idle {
				t.Errorf("idle: %v", !idle)
			}
		}
	})
}

// Setting the same limit again keeps what it has learned, and another begins with its own number.
func TestInFlight_AdaptiveAndSetLimits(t *testing.T) {
	limit := InFlight(64).Adaptive()
	b := Must(NewBucket("api", PerSecond(1000), limit))
	p := admit(t, b, 1)
	p.Refused(time.Millisecond)
	p.Done()
	for _, c := range []struct {
		set  Limit
		want float64
	}{{limit, 32}, {b.Limits()[1], 32}, {InFlight(50).Adaptive(), 50}, {InFlight(64), 64}} {
		must(t, b.SetLimits(ctx, PerSecond(2000), c.set))
		if s := states(t, b)[1]; s.Limit.Capacity != c.want || b.Limits()[1] != c.set {
			t.Errorf("%v: %+v", c.set, s)
		}
	}
}

// An adaptive limit is for a bucket in one process.
func TestInFlight_AdaptiveIsForOneProcess(t *testing.T) {
	_, err := NewSharedBucket(store.NewMemory(), "k", InFlight(64).Adaptive())
	if !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "Adaptive is for a bucket in this process") {
		t.Errorf("shared: %v", err)
	}
	b := Must(NewSharedBucket(store.NewMemory(), "k", InFlight(64)))
	if err := b.SetLimits(ctx, InFlight(64).Adaptive()); !errors.Is(err, ErrInvalid) {
		t.Errorf("set in a shared bucket: %v", err)
	}
}
