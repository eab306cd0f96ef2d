package queue

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dripfeed/dripfeed/outbound"
	"github.com/dripfeed/dripfeed/outbound/outboundtest"
	"github.com/dripfeed/dripfeed/outbound/store"
)

func TestSetLimits_RefusesWhatNoLongerFits(t *testing.T) {
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

// A place far away that was booked under the old limits binds no call. Calls that wait go by
// the new limits, at once if this process has set them, else within newsCheck.
func TestSetLimits_RaisedLimitCountsForWaitingCalls(t *testing.T) {
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

// A program that reads its configuration each second sets the same limits each second.
func TestSetLimits_ReloadEachSecondCostsNoCall(t *testing.T) {
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
func TestSetLimits_LoweredLimitKeepsNearReservations(t *testing.T) {
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
