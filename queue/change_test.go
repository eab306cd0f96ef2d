package queue

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestNobodyGoesDuringAHoldAndThenTheyDrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 5, LeakRate: 10})
		l := line{q: New(b, Config{})}
		begin := time.Now()
		for i := range 40 {
			l.arrive(bg, i, outbound.Cost{1}, nil)
		}
		time.Sleep(time.Second)
		if err := b.Hold(bg, 5*time.Second); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		for i, at := range l.at {
			switch d := at.Sub(begin); {
			case d > time.Second && d < 6*time.Second:
				t.Errorf("call %d went at %v, in the hold", i, d)
			case i > 0 && d > 6*time.Second && at.Sub(l.at[i-1]) < 99*time.Millisecond && l.at[i-1].Sub(begin) >= 6*time.Second:
				t.Errorf("call %d went %v after the one before it, want a drip", i, at.Sub(l.at[i-1]))
			}
		}
		if len(l.at) != 40 || !l.sorted() {
			t.Errorf("order %v", l.order)
		}
	})
}

func TestAHoldRefusesCallsThatNowMissTheirDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: 1})
		q := New(b, Config{})
		results := make(chan error, 10)
		for i := range 10 {
			ctx, cancel := context.WithTimeout(bg, time.Duration(i)*time.Second+500*time.Millisecond)
			defer cancel()
			go func() {
				_, err := q.Acquire(ctx, outbound.Cost{1})
				results <- err
			}()
			synctest.Wait()
		}
		if len(results) != 1 {
			t.Fatalf("%d answered, want 1", len(results))
		}
		time.Sleep(time.Millisecond)
		b.Hold(bg, time.Hour)
		synctest.Wait()
		// The second call has a place: the queue refuses it when it looks at the place, or its ctx ends.
		if len(results) < 9 {
			t.Errorf("%d answered at the hold, want all who cannot make it", len(results))
		}
		<-results
		for len(results) > 0 {
			if err := <-results; !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		pass(time.Minute)
	})
}

func TestAfterResumeCallsThatWaitBookAnewInOrder(t *testing.T) {
	for _, rate := range []float64{1, 1000} {
		synctest.Test(t, func(t *testing.T) {
			b := bucket(t, outbound.Limit{Capacity: 1, LeakRate: rate})
			l := line{q: New(b, Config{})}
			var h outboundtest.History
			for i := range 50 {
				l.arrive(bg, i, outbound.Cost{1}, func(*outbound.Permit) { h.Add(time.Now(), 1) })
			}
			b.Hold(bg, time.Hour)
			time.Sleep(10 * time.Second)
			if l.went() != 1 {
				t.Errorf("%d went, want 1", l.went())
			}
			b.Resume(bg)
			// Calls that do not wait come as well: the places booked before are void.
			for range 100 {
				if _, err := b.Acquire(bg, outbound.Cost{1}); err == nil {
					h.Add(time.Now(), 1)
				}
				time.Sleep(100 * time.Microsecond)
			}
			pass(time.Hour)
			if len(l.order) != 50 || !l.sorted() {
				t.Errorf("order %v", l.order)
			}
			if err := h.Check(1, rate, 0); err != nil {
				t.Errorf("at %v/s: %v", rate, err)
			}
		})
	}
}

func TestLoweredLimitsRefuseWhatNoLongerFits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 10, LeakRate: 1})
		q := New(b, Config{})
		q.Acquire(bg, outbound.Cost{10})
		got := make(chan error, 3)
		for _, n := range []float64{1, 9, 2} {
			go func() {
				_, err := q.Acquire(bg, outbound.Cost{n})
				if n == 9 && !errors.Is(err, outbound.ErrTooLarge) || n != 9 && err != nil {
					t.Errorf("a call of %v: %v", n, err)
				}
				got <- err
			}()
			synctest.Wait()
		}
		if err := b.SetLimits(bg, outbound.Limit{Capacity: 5, LeakRate: 1}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(got) != 1 {
			t.Errorf("%d answered at the change, want the one that no longer fits", len(got))
		}
		pass(time.Minute)
		if len(got) != 3 {
			t.Errorf("%d answered, want 3", len(got))
		}
	})
}

// Calls acquire tokens by an estimate and settle to less when they end. When units come
// back the queue books its next place anew, or they would come too late for it.
func TestUnitsThatComeBackAreUsed(t *testing.T) {
	for _, largest := range []float64{500, 1000} {
		unitsThatComeBackAreUsed(t, largest)
	}
}

func unitsThatComeBackAreUsed(t *testing.T, estimate float64) {
	synctest.Test(t, func(t *testing.T) {
		b := bucket(t, outbound.Limit{Capacity: 1000, LeakRate: 100})
		q := New(b, Config{})
		var used atomic.Int64
		for range 500 {
			go func() {
				p, err := q.Acquire(bg, outbound.Cost{estimate})
				if err != nil {
					t.Error(err)
				}
				time.Sleep(time.Second)
				used.Add(200)
				p.Settle(outbound.Cost{200})
				p.Done()
			}()
		}
		begin := time.Now()
		for used.Load() < 90_000 {
			time.Sleep(time.Second)
			synctest.Wait()
		}
		if rate := float64(used.Load()-1000) / time.Since(begin).Seconds(); rate < 95 || rate > 100.5 {
			t.Errorf("%v units per second used, want at least 95 of 100", rate)
		} else {
			t.Logf("%.1f %% of the quota", rate)
		}
		pass(time.Hour)
	})
}

// A place far away that was booked under the old limits binds no call. Calls that wait go by
// the new limits, at once if this process has set them, else within newsCheck.
func TestARaisedLimitStrandsNobody(t *testing.T) {
	for name, elsewhere := range map[string]bool{"here": false, "elsewhere": true} {
		for _, shares := range []bool{false, true} {
			if elsewhere && !shares {
				continue
			}
			synctest.Test(t, func(t *testing.T) {
				m := store.NewMemory()
				b := bucket(t, outbound.PerHour(1))
				if shares {
					b = shared(t, m, outbound.PerHour(1))
				}
				q := New(b, Config{})
				var h outboundtest.History
				for range 4 {
					go func() {
						if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
							t.Error(err)
						}
						h.Add(time.Now(), 1)
					}()
				}
				time.Sleep(10*time.Minute + 3*time.Second)
				if elsewhere {
					b = shared(t, m, outbound.PerHour(1))
				}
				changed := time.Now()
				if err := b.SetLimits(bg, outbound.PerSecond(10)); err != nil {
					t.Fatal(err)
				}
				pass(3 * time.Hour)
				most := time.Second + 500*ms // places within the next second stay as they are
				if elsewhere {
					most += newsCheck
				}
				if took := h.Total().End.Sub(changed); h.Len() != 4 || took > most {
					t.Errorf("%s, in a store %v: %d went, the last %v after the change", name, shares, h.Len(), took)
				}
				if err := h.Check(1, 10, 0.05); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// The queue hears of it when another worker ends a hold.
func TestAQueueHearsOfAResumeElsewhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := store.NewMemory()
		limit := outbound.Limit{Capacity: 1, LeakRate: 10}
		q := New(shared(t, m, limit), Config{})
		other := shared(t, m, limit)
		if err := other.Hold(bg, time.Hour); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		time.AfterFunc(time.Minute+time.Second, func() { _ = other.Resume(bg) })
		if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil || time.Since(begin) > time.Minute+newsCheck+2*time.Second {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
	})
}

// The longest possible MaxWait does not overflow.
func TestTheLongestMaxWaitAdmitsCallsThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(bucket(t, outbound.PerSecond(10)), Config{MaxWait: 1<<63 - 1})
		for range 3 {
			if _, err := q.Acquire(bg, outbound.Cost{1}); err != nil {
				t.Error(err)
			}
		}
	})
}

// A program that reads its configuration each second sets the same limits each second.
func TestAReloadEachSecondCostsNoCall(t *testing.T) {
	limits := []outbound.Limit{outbound.PerSecond(10), outbound.PerHour(5_000).Burst(500).Of(0, "hour")}
	for name, store := range map[string]func() store.Store{"in memory": nil, "shared": func() store.Store { return store.NewMemory() }} {
		synctest.Test(t, func(t *testing.T) {
			took := func(every time.Duration) time.Duration {
				b := outbound.Must(outbound.NewBucket("reload", limits...))
				if store != nil {
					b = outbound.Must(outbound.NewSharedBucket(store(), "reload", limits...))
				}
				done := make(chan struct{})
				defer close(done)
				go func() {
					for {
						select {
						case <-time.After(every):
							if err := b.SetLimits(bg, limits...); err != nil {
								t.Error(err)
							}
						case <-done:
							return
						}
					}
				}()
				q := New(b, Config{})
				begin := time.Now()
				ctx, cancel := context.WithTimeout(bg, time.Minute)
				defer cancel()
				for range 20 {
					p, err := q.Acquire(ctx, outbound.Cost{1})
					if err != nil {
						t.Fatal(err)
					}
					p.Done()
				}
				return time.Since(begin)
			}
			without := took(time.Hour)
			for _, every := range []time.Duration{time.Second, 50 * time.Millisecond} {
				if with := took(every); with > without+time.Millisecond {
					t.Errorf("%s: 20 calls take %v with a reload every %v, and %v without", name, with, every, without)
				}
			}
			if without > 2*time.Second {
				t.Errorf("%s: 20 calls take %v", name, without)
			}
		})
	}
}

// A limit that is lowered leaves the places of the next second as they are.
func TestACallThatIsAboutToGoKeepsItsPlaceWhenTheLimitIsLowered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for kind, b := range map[string]*outbound.Bucket{
			"of its own": bucket(t, outbound.Limit{Capacity: 1, LeakRate: 2}),
			"shared":     outbound.Must(outbound.NewSharedBucket(store.NewMemory(), "k", outbound.Limit{Capacity: 1, LeakRate: 2})),
		} {
			l := line{q: New(b, Config{MaxWait: time.Second})}
			begin := time.Now()
			l.arrive(bg, 0, outbound.Cost{1}, nil)
			l.arrive(bg, 1, outbound.Cost{1}, nil)
			pass(100 * time.Millisecond)
			if err := b.SetLimits(bg, outbound.Limit{Capacity: 1, LeakRate: 0.1}); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if len(l.at) != 2 || l.at[1].Sub(begin) != 500*time.Millisecond {
				t.Errorf("%s: went at %v, from %v on, want the second 500ms later", kind, l.at, begin)
			}
		}
	})
}
