package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/store"
)

// comeUntold has a call come while the bucket has told of a change, and then the trip. It returns the
// call's error, once there is one.
func comeUntold(q *Queue) <-chan error {
	refused := make(chan error, 1)
	q.mu.Lock()
	q.news++
	q.mu.Unlock()
	go func() {
		_, err := q.Acquire(bg, outbound.Cost{1})
		refused <- err
	}()
	synctest.Wait()
	q.onChange()
	synctest.Wait()
	return refused
}

// come has n calls come, one after the other, so that all but the first are foretold.
func come(q *Queue, n int, apart time.Duration) {
	for range n {
		go func() { _, _ = q.Acquire(bg, outbound.Cost{1}) }()
		pass(apart)
	}
}

// A call that comes while nobody can foretell when it goes, because a trip is to tell first what has
// come back, is refused after that trip, and not when its turn comes. Those that were foretold stay, also
// where others have booked since and they cannot make it any more: there may be room again.
func TestQueue_UnforeseenCallIsRefusedAfterTheRequest(t *testing.T) {
	limit := outbound.Limit{Capacity: 1, LeakRate: 1}
	for _, far := range []*far{nil, {Store: store.NewMemory(), way: 20 * ms}} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, limit)
			if far != nil {
				b = shared(t, far, limit)
			}
			q := New(b, Config{MaxWait: 10 * time.Second})
			come(q, 20, 40*ms)
			told := q.Len()
			if far != nil {
				k := outbound.BookRequest{Costs: make([]outbound.Cost, 5), Wait: time.Minute, Horizon: time.Minute}
				for i := range k.Costs {
					k.Costs[i] = outbound.Cost{1}
				}
				if err := shared(t, far.Store, limit).Book(t.Context(), &k); err != nil || len(k.Tickets) != 5 {
					t.Fatal(err, len(k.Tickets))
				}
			}
			refused := comeUntold(q)
			pass(100 * ms)
			var full *outbound.ThrottledError
			select {
			case err := <-refused:
				if !errors.As(err, &full) || full.RetryAfter <= 10*time.Second {
					t.Errorf("the call was told %v", err)
				}
			default:
				t.Error("the call still waits")
			}
			q.mu.Lock()
			n, untold := q.line.n, q.line.uncounted
			q.mu.Unlock()
			if n != told || untold != &q.line.end {
				t.Errorf("%d wait, and %v is untold, want %d", n, untold, told)
			}
			pass(time.Minute)
		})
	}
}

// A call that cancels during the trip leaves a place that fits nobody. It goes back, and does not count
// for a call that has come meanwhile.
func TestQueue_ReturnedReservationRefusesNoNewCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 20 * ms}, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})
		p, err := q.Acquire(bg, outbound.Cost{10})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(bg)
		go func() { _, _ = q.Acquire(ctx, outbound.Cost{8}) }()
		pass(200 * ms)
		go p.Settle(outbound.Cost{9.9})
		synctest.Wait()
		if !q.pumping || q.current() {
			t.Fatal("there is no trip")
		}
		cancel()
		synctest.Wait()
		soon, stop := context.WithTimeout(bg, 5*time.Second)
		defer stop()
		if _, err := q.Acquire(soon, outbound.Cost{1}); err != nil {
			t.Errorf("refused: %v", err)
		}
		pass(time.Minute)
	})
}

// In the step that books for a call of an invalid cost there is no trip, and nothing is heard.
func TestQueue_StepWithoutARequestRefusesNoNewCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(shared(t, &far{Store: store.NewMemory(), way: 20 * ms}, outbound.Limit{Capacity: 10, LeakRate: 1}), Config{})
		var used [2]outbound.Permit
		for i := range used {
			used[i], _ = q.Acquire(bg, outbound.Cost{5})
		}
		come(q, 1, 100*ms)
		q.mu.Lock()
		in := q.early(time.Now()) + q.trips.lowMark()
		q.mu.Unlock()
		pass(in - 75*ms)
		go used[0].Settle(outbound.Cost{4.999})
		synctest.Wait()
		if !q.pumping || q.current() {
			t.Fatal("there is no trip")
		}
		go func() {
			if _, err := q.Acquire(bg, outbound.Cost{-1}); !errors.Is(err, outbound.ErrInvalid) {
				t.Error(err)
			}
		}()
		synctest.Wait()
		go func() {
			ctx, cancel := context.WithTimeout(bg, 500*ms)
			defer cancel()
			if _, err := q.Acquire(ctx, outbound.Cost{1}); err != nil {
				t.Errorf("refused: %v", err)
			}
		}()
		pass(30 * ms)
		go used[1].Settle(outbound.Cost{0.1})
		pass(time.Minute)
	})
}

// A look at those in a long line for one that is untold takes nothing of what the queue foretells
// newcomers by: those that come next are refused at once.
func TestQueue_CountingAgainAdmitsNoMoreCalls(t *testing.T) {
	for _, rate := range []float64{100, 20000} { // of 20 000 per second many have places
		synctest.Test(t, func(t *testing.T) {
			q := New(bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate}), Config{MaxWait: time.Duration(1000 / rate * 1e9)})
			come(q, 1100, 0)
			waiting := q.Len()
			for range 3 {
				left := 40
				for ; left > 0 && len(comeUntold(q)) == 0; left-- { // the first of them wait for the work to be worth it
				}
				if left == 0 || q.Len() != waiting {
					t.Fatalf("%d wait, want %d", q.Len(), waiting)
				}
				if come(q, 5, 0); q.Len() != waiting {
					t.Errorf("%d wait, want %d", q.Len(), waiting)
				}
			}
			_ = q.Close()
		})
	}
}

// No call goes before the last one that is booked, whatever units that takes. The forecast
// for a newcomer counts that.
func TestQueue_RefusesEarlyBehindTheLastReservation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.Limit{Capacity: 100, LeakRate: 100}, outbound.Limit{Capacity: 10, LeakRate: 1, Unit: 1}), Config{})
		for range 2 {
			go q.Acquire(bg, outbound.Cost{1, 10})
			synctest.Wait()
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		begin := time.Now()
		var full *outbound.ThrottledError
		_, err := q.Acquire(ctx, outbound.Cost{1})
		if !errors.As(err, &full) || full.RetryAfter != 10*time.Second || time.Since(begin) != 0 {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		pass(time.Minute)
	})
}

// While nobody waits the queue does not listen to the bucket, and forgets what it knew.
func TestQueue_EmptyQueueForgetsItsClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Store: store.NewMemory(), way: 10 * time.Millisecond}
		b, err := outbound.NewSharedBucket(s, "k", outbound.Limit{Capacity: 10, LeakRate: 10})
		if err != nil {
			t.Fatal(err)
		}
		q := New(b, Config{})
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		if err := b.SetLimits(bg, outbound.Limit{Capacity: 1000, LeakRate: 1000}); err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second comes during the trip of the first
			go func() {
				if _, err := q.Acquire(bg, outbound.Cost{50}); err != nil {
					t.Error(err)
				}
			}()
			synctest.Wait()
		}
		pass(time.Minute)
	})
}

// Until a trip that brings units back has ended, the clock still counts them. A call that comes
// before that is not refused for them.
func TestQueue_CallDuringRequestCountsReturnedUnits(t *testing.T) {
	for name, change := range map[string]func(p *outbound.Permit, cancel func()){
		"a cancel": func(_ *outbound.Permit, cancel func()) { cancel() },
		"a settle": func(p *outbound.Permit, _ func()) { p.Settle(outbound.Cost{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &far{Store: store.NewMemory(), way: 10 * ms}
				q := New(shared(t, s, outbound.Limit{Capacity: 1, LeakRate: 1}), Config{})
				p, err := q.Acquire(bg, outbound.Cost{1})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(bg)
				defer cancel()
				go func() { _, _ = q.Acquire(ctx, outbound.Cost{1}) }()
				pass(100 * ms)
				change(&p, cancel)
				for range 6 { // at once, while the trip is under way, and after it
					synctest.Wait()
					soon, stop := context.WithTimeout(bg, 980*ms)
					go func() {
						defer stop()
						if _, err := q.Acquire(soon, outbound.Cost{0.01}); err != nil {
							t.Error(err)
						}
					}()
					time.Sleep(5 * ms)
				}
				cancel()
				pass(5 * time.Second)
			})
		})
	}
}

// A window that is above its brim, because it was lowered, comes back as a whole. Who can wait
// for that is not refused, and who cannot is refused at once.
func TestQueue_WaitsForAWindowAboveItsCapacity(t *testing.T) {
	for _, memory := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Window(100, time.Minute))
			if !memory {
				b = shared(t, store.NewMemory(), outbound.Window(100, time.Minute))
			}
			if _, err := b.Acquire(bg, outbound.Cost{100}); err != nil {
				t.Fatal(err)
			}
			if err := b.SetLimits(bg, outbound.Window(10, time.Minute)); err != nil {
				t.Fatal(err)
			}
			q, begin := New(b, Config{}), time.Now()
			ask := func(wait time.Duration) (time.Duration, error) {
				ctx, cancel := context.WithTimeout(bg, wait)
				defer cancel()
				_, err := q.Acquire(ctx, outbound.Cost{1})
				return time.Since(begin), err
			}
			for range 9 {
				go func() {
					if after, err := ask(2 * time.Minute); err != nil || after > 62*time.Second {
						t.Errorf("in memory %v: after %v: %v", memory, after, err)
					}
				}()
			}
			time.Sleep(time.Second)
			if after, err := ask(100 * time.Second); err != nil || after > 62*time.Second {
				t.Errorf("in memory %v: the last of ten, after %v: %v", memory, after, err)
			}
			for range 10 {
				go ask(2 * time.Minute)
			}
			synctest.Wait()
			begin = time.Now()
			if after, err := ask(30 * time.Second); err == nil || after > time.Second {
				t.Errorf("in memory %v: hopeless, after %v: %v", memory, after, err)
			}
			pass(3 * time.Minute)
		})
	}
}

// A call that comes while no other waits is refused by the bucket, with the reason why it does not
// wait longer.
func TestQueue_RefusalOfTheBucketHasTheReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1.0 / (48 * 3600)})
		if _, err := b.Acquire(bg, outbound.Cost{1}); err != nil {
			t.Fatal(err)
		}
		soon, stop := context.WithTimeout(bg, time.Minute)
		defer stop()
		for _, c := range []struct {
			ctx     context.Context
			maxWait time.Duration
			want    error
		}{
			{bg, 0, ErrFar}, {bg, time.Hour, nil}, {soon, time.Hour, context.DeadlineExceeded}, {soon, 0, context.DeadlineExceeded},
		} {
			q := New(b, Config{MaxWait: c.maxWait})
			_, err := q.Acquire(c.ctx, outbound.Cost{1})
			full, ok := errors.AsType[*outbound.ThrottledError](err)
			if !ok || full.Err != c.want || full.RetryAfter < 47*time.Hour || q.Stats() != (Stats{Refused: 1}) {
				t.Errorf("%v (%+v), %+v, want %v", err, full, q.Stats(), c.want)
			}
		}
	})
}
