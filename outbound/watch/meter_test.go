package watch

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
	"github.com/dripfeed/dripfeed/queue"
)

// What a board counts.
func TestMeter_CountsOnce(t *testing.T) {
	question(t, "Whatever becomes of calls, each is counted once", func(t *testing.T, b *Board) {
		q := queue.New(bucket(t, outbound.PerSecond(10)), queue.Config{MaxWait: 5 * time.Second})
		s := newStore()
		s.fail(store.ErrUnavailable)
		away := shared(t, s, "k", outbound.PerSecond(1))
		l := b.Add("api", limiterFunc(func(ctx context.Context, c outbound.Cost) (outbound.Permit, error) {
			switch c[0] {
			case 2:
				panic("limiter")
			case 3:
				return away.Acquire(ctx, outbound.Cost{1})
			case 4:
				return outbound.Permit{}, errors.New("own")
			case 0.5:
				return q.Acquire(ctx, outbound.Cost{50})
			}
			return q.Acquire(ctx, c)
		}))
		var all sync.WaitGroup
		asked := 0
		ask := func(ctx context.Context, cost float64) {
			asked++
			all.Go(func() {
				defer func() { _ = recover() }()
				if p, err := l.Acquire(ctx, outbound.Cost{cost}); err == nil {
					p.Done()
				}
			})
		}
		short, cancel := context.WithTimeout(bg, 2*time.Second)
		defer cancel()
		gone, leave := context.WithCancel(bg)
		for i := range 100 {
			ask(bg, 1)
			if i%10 == 0 {
				ask(short, 1)
				ask(gone, 1)
				for _, cost := range []float64{2, 3, 4, 0.5} {
					ask(bg, cost)
				}
			}
		}
		synctest.Wait()
		leave()
		time.Sleep(3 * time.Second)
		_ = q.Close()
		ask(bg, 1)
		all.Wait()
		c := only(t, b).Calls
		sum := c.Admitted + c.Refused + c.Failed + c.Cancelled
		errorIf(t, sum != uint64(asked), "%d calls asked, and %d are counted: %+v", asked, sum, c)
		want := map[string]uint64{"panic": 10, "store": 10, "other": 10, "cost": 10, "closed": c.ByError["closed"]}
		errorIf(t, fmt.Sprint(c.ByError) != fmt.Sprint(want) || c.ByError["closed"] == 0 || c.Admitted == 0 || c.Refused == 0 || c.Cancelled == 0,
			"%+v", c)
		if waits := c.Waits.Count; waits != c.Admitted || c.Units[0] != float64(c.Admitted) {
			t.Errorf("%d waits and %v units of %d admitted calls", waits, c.Units[0], c.Admitted)
		}
	})
	question(t, "Refusals of the API are counted by their reasons. The permits have nothing more to free than without the board", func(t *testing.T, b *Board) {
		l := b.Add("api", bucket(t, outbound.Limit{Capacity: 100, LeakRate: 1}))
		p := take(t, l, 3)
		errorIf(t, p.Pending(), "Done has something to free")
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Wait: time.Minute, Reason: "rate"})
		p.Refused(0)
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused, Reason: "whim"})
		p.Answered(outbound.Answer{Kind: outbound.AnswerRefused})
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 1, Reason: "concurrency"})
		p.Answered(outbound.Answer{Kind: outbound.AnswerHold, Wait: 1}) // of a call that it has taken
		p.Done()
		s := only(t, b)
		errorIf(t, fmt.Sprint(s.Calls.ByReason) != "map[concurrency:1 rate:2 unknown:2]" || s.HeldFor < 59*time.Second || s.Severity != Stopped,
			"%+v", s)
	})
	question(t, "A limiter may admit a cost that is no number. All that is shown stays a number", func(t *testing.T, b *Board) {
		l := b.Add("api", outbound.Unlimited{})
		for _, n := range []float64{1, math.Inf(1), math.NaN(), -5, math.MaxFloat64, 2} {
			p := take(t, l, n, n)
			report(&p, "both", 5, math.Inf(1), time.Hour)
			report(&p, "other", math.NaN(), 3, time.Hour)
		}
		s := b.Snapshot(bg, Query{})
		c := s.Limiters[0].Calls
		errorIf(t, c.Units[0] != 3 || c.Units[1] != 3 || c.Admitted != 6, "%+v", c)
		for _, x := range s.Limiters[0].Budgets {
			errorIf(t, x.Limit*x.Remaining >= 0, "%+v", x) // one is -1
		}
		jsonOf(t, s)
	})
}

// Counting a call allocates nothing, and the limiter of a key is one allocation.
func TestMeter_Allocations(t *testing.T) {
	var b Board
	wide := outbound.Limit{Capacity: 1e9, LeakRate: 1e9}
	l, of := b.Add("api", bucket(t, wide)), AddKeyed(&b, "tenants", tenants(10, wide), nil)
	for most, limiter := range []func() outbound.Limiter{func() outbound.Limiter { return l }, func() outbound.Limiter { return of("a") }} {
		n := testing.AllocsPerRun(100, func() {
			p := take(t, limiter())
			p.Done()
		})
		errorIf(t, n > float64(most), "%v allocations, want %d", n, most)
	}
}

// A call that OnCall breaks returns its cost, because it never leaves.
func TestOnCall_PanicReturnsTheCall(t *testing.T) {
	for name, end := range map[string]func(){"panic": func() { panic("own") }, "Goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var b Board
			slots := bucket(t, outbound.InFlight(1), outbound.Limit{Capacity: 1, LeakRate: 0.001})
			l, breaks := b.Add("api", slots), true
			b.OnCall = func(context.Context, Call) {
				if breaks {
					end()
				}
			}
			done := make(chan any)
			go func() {
				defer func() { done <- recover() }()
				_, _ = l.Acquire(bg, outbound.Cost{1})
			}()
			got := <-done
			errorIf(t, (got == nil) != (name == "Goexit"), "recovered %v", got)
			breaks = false
			p := take(t, l)
			p.Done()
			c := only(t, &b).Calls
			errorIf(t, c.Admitted != 2 || c.Failed != 0, "%+v", c)
		})
	}
}

// A call whose own ctx has ended is cancelled, however its limiter says so. A store's deadline, or its context, is not
// the caller's.
func TestResults_CancelledAndFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the user has left")
		left, leave := context.WithCancelCause(bg)
		leave(cause)
		late, cancel := context.WithTimeout(bg, time.Nanosecond)
		defer cancel()
		time.Sleep(time.Second)
		outage := func(err error) error { return &outbound.StoreError{Op: "book", Key: "k", Err: err} }
		for _, c := range []struct {
			ctx  context.Context
			err  error
			want string
		}{
			{left, context.Canceled, "cancelled"},
			{left, cause, "cancelled"},
			{left, outage(context.Canceled), "cancelled"},
			{late, fmt.Errorf("own: %w", context.DeadlineExceeded), "cancelled"},
			{late, outage(fmt.Errorf("net: %w", context.DeadlineExceeded)), "cancelled"},
			{late, &outbound.CostError{Err: outbound.ErrTooLarge}, "map[cost:1]"},
			{late, &outbound.ThrottledError{Err: context.DeadlineExceeded}, "refused"},
			{bg, outage(context.DeadlineExceeded), "map[store:1]"},
			{bg, outage(context.Canceled), "map[store:1]"},
			{bg, fmt.Errorf("own: %w", outbound.ErrThrottled), "refused"},
			{nil, errors.New("own"), "map[other:1]"},
		} {
			var b Board
			var call Call
			b.OnCall = func(_ context.Context, c Call) { call = c }
			l := b.Add("api", limiterFunc(func(context.Context, outbound.Cost) (outbound.Permit, error) { return outbound.Permit{}, c.err }))
			_, err := l.Acquire(c.ctx, outbound.Cost{1})
			errorIf(t, err != c.err, "%v became %v", c.err, err)
			is := only(t, &b).Calls
			got := fmt.Sprint(is.ByError)
			result := "failed"
			switch {
			case is.Cancelled == 1:
				got, result = "cancelled", "cancelled"
			case is.Refused == 1:
				got, result = "refused", "refused"
			}
			errorIf(t, call.Name != "api" || call.Result != result || call.Err != c.err,
				"OnCall got %+v, and counted is %s", call, got)
			sum := is.Cancelled + is.Refused + is.Failed + is.Admitted
			errorIf(t, got != c.want || sum != 1, "%v is %s, want %s: %+v", c.err, got, c.want, is)
		}
	})
}
