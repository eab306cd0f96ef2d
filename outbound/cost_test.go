package outbound

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// What ten tenths add up to is not always one: the last bits of a cost are rounding.
func TestACostThatIsAboveTheCapacityByRoundingTakesAllOfIt(t *testing.T) {
	const capacity = 0.7
	two := math.Nextafter(math.Nextafter(capacity, 1), 1)
	wide := Limit{Capacity: 100, LeakRate: 100, Name: "wide"}
	for name, make := range map[string]func(l Limit) *Bucket{
		"one limit":  func(l Limit) *Bucket { return Must(NewBucket("k", l)) },
		"two limits": func(l Limit) *Bucket { return Must(NewBucket("k", wide, l)) },
		"at once":    func(l Limit) *Bucket { return Must(NewBucket("k", l, AtOnce(9))) },
		"shared":     func(l Limit) *Bucket { return Must(NewSharedBucket(NewMemory(), "k", l)) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := make(Limit{Capacity: capacity, LeakRate: 1})
				for _, n := range []float64{two, capacity * (1 + 0.49e-9)} {
					if ok, err := b.AbleToAccept(ctx, Cost{n}); !ok || err != nil {
						t.Errorf("%v of %v: able to accept %v, %v", n, capacity, ok, err)
					}
					p, err := b.Acquire(ctx, Cost{n})
					if err != nil {
						t.Fatalf("%v of %v: %v", n, capacity, err)
					}
					if s, err := b.State(ctx); err != nil || s.Level != capacity {
						t.Errorf("%v: level %v (%v), want %v", n, s.Level, err, capacity)
					}
					p.Settle(Cost{n}) // it has cost what it has cost
					p.Done()
					if s, _ := b.State(ctx); s.Level != capacity {
						t.Errorf("settled to what it was: level %v, want %v", s.Level, capacity)
					}
					var full *ThrottledError
					if _, err := b.Acquire(ctx, Cost{n}); !errors.As(err, &full) || full.RetryAfter != 700*time.Millisecond {
						t.Errorf("a second one: %v, want 700ms", err)
					}
					time.Sleep(700 * time.Millisecond)
					k := Booking{Costs: []Cost{{n}}}
					if err := b.Book(ctx, &k); err != nil {
						t.Errorf("booked: %v", err)
					}
					if _, err := k.Clock.Earliest(&Cost{}, &Cost{n}); err != nil {
						t.Errorf("the clock says: %v", err)
					}
					time.Sleep(time.Second)
				}
				for _, n := range []float64{capacity * (1 + 0.51e-9), 0.8} {
					if _, err := b.Acquire(ctx, Cost{n}); !errors.Is(err, ErrTooLarge) {
						t.Errorf("%v of %v: %v, want too large", n, capacity, err)
					}
					if ok, err := b.AbleToAccept(ctx, Cost{n}); ok || !errors.Is(err, ErrTooLarge) {
						t.Errorf("%v of %v: able to accept %v, %v", n, capacity, ok, err)
					}
				}
			})
		})
	}
}
