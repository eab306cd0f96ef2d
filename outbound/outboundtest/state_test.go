package outboundtest

import (
	"math"
	"math/rand/v2"
	"testing"
)

// A log remembers the calls of two windows at most.
func TestSlidingLog_RemembersTwoWindowsAtMost(t *testing.T) {
	s := slidingLog{limit: 100, window: 1000}
	for now := int64(0); now < 1_000_000; now += 10 {
		if w := s.wait(now, 0, 1); w != 0 {
			t.Fatalf("at %d: wait %v, want 0: 100 fit in each window", now, w)
		}
		s.take(now, 1)
		if len(s.log) > 201 || s.sum > 100 {
			t.Fatalf("at %d: %d calls remembered, %g units, want at most 201 and 100", now, len(s.log), s.sum)
		}
	}
	if s.forget(2_000_000); len(s.log) != 0 || s.sum != 0 {
		t.Errorf("after a pause: %d calls, %g units, want none", len(s.log), s.sum)
	}
}

// The rounding of fractions does not add up in a log.
func TestSlidingLog_ForgetsTheRoundingOfFractions(t *testing.T) {
	s := slidingLog{limit: 1, window: 10}
	for now := range int64(1_000_000) {
		if w := s.wait(now, 0, 0.1); w != 0 {
			t.Fatalf("at %d: wait %v, want 0: a tenth fits in each tenth of the window", now, w)
		}
		s.take(now, 0.1)
	}
}

// Windows before 1970 begin at multiples of their length, too.
func TestFixedWindow_Before1970(t *testing.T) {
	f := fixedWindow{limit: 1, window: 1000}
	for now, want := range map[int64]int64{-1: -1000, -1000: -1000, -1001: -2000, 0: 0, 999: 0, 1000: 1000} {
		if start := f.startOf(now); start != want {
			t.Errorf("the window of %d starts at %d, want %d", now, start, want)
		}
	}
}

// A bucket admits after the wait that it reports, and not earlier.
func TestLeakyBucket_AdmitsAfterItsWaitNotBefore(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 20_000 {
		capacity := math.Pow(10, 24*random.Float64()-12)
		drain := math.Pow(10, 18*random.Float64()-9) // seconds, up to 30 years
		b := leakyBucket{brim: capacity + capacity*sharp, leakRate: capacity / drain}
		now := random.Int64N(1 << 60)
		b.take(now, capacity*random.Float64())
		units := capacity * random.Float64()
		w := int64(b.wait(now, 0, units))
		if again := b.wait(now+w, 0, units); again != 0 {
			t.Fatalf("%+v: %g units: told to wait %d ns, then %d more", b, units, w, again)
		}
		early := max(1, w>>40) // float64 cannot tell closer instants apart
		if w > early && b.wait(now+w-early, 0, units) == 0 {
			t.Fatalf("%+v: %g units: told to wait %d ns, but %d less would do", b, units, w, early)
		}
	}
}
