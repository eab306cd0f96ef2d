package store

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// someSpeeds and someSpan draw numbers that are dense where the clock changes its ways.
func someSpeeds(r *rand.Rand) float64 {
	switch r.IntN(4) {
	case 0:
		return MinSpeed
	case 1:
		return 1 - math.Pow(10, -r.Float64()*15)
	default:
		return MinSpeed + r.Float64()*(1-MinSpeed)
	}
}

func someSpan(r *rand.Rand) time.Duration {
	return time.Duration(math.Pow(10, r.Float64()*14)) // a nanosecond to a day
}

// exactDial integrates the speed, v e^(kt) up to 1, by Simpson's rule in small steps.
func exactDial(v float64, x time.Duration) float64 {
	k := math.Log(1.1) / 60
	up := math.Log(1/v) / k
	t := min(x.Seconds(), up)
	const steps = 2000
	sum := 0.0
	for i := range steps {
		a, b := t*float64(i)/steps, t*float64(i+1)/steps
		sum += (b - a) / 6 * (v*math.Exp(k*a) + 4*v*math.Exp(k*(a+b)/2) + v*math.Exp(k*b))
	}
	return sum + x.Seconds() - t
}

func TestTheDialShowsTheIntegralOfItsSpeed(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 0))
	for range 2000 {
		v, x := someSpeeds(r), someSpan(r)
		y, _ := dialOf(v, x)
		want := exactDial(v, x)
		if math.Abs(y.Seconds()-want) > 2e-9+1e-12*want {
			t.Fatalf("dialOf(%v, %v) = %v, want %v s", v, x, y, want)
		}
	}
}

func TestTheDialNeverRunsFasterThanRealTimeAndNeverBack(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	for range 200_000 {
		v, x, z := someSpeeds(r), someSpan(r), someSpan(r)
		y, after := dialOf(v, x)
		if y < 0 || y > x || after < v || after > 1 {
			t.Fatalf("dialOf(%v, %v) = %v, %v", v, x, y, after)
		}
		if more, faster := dialOf(v, x+z); more < y || faster < after {
			t.Fatalf("dialOf(%v): %v after %v, but %v after %v", v, y, x, more, x+z)
		}
		if now, _ := dialOf(min(1, v*1.01), x); now < y {
			t.Fatalf("%v shows more at speed %v than at %v", x, v, v*1.01)
		}
	}
}

// Two looks see what one look sees, but for a nanosecond each. That is lost, never gained.
func TestTheDialDoesNotCareHowOftenItIsLookedAt(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 2))
	for range 200_000 {
		v, a, b := someSpeeds(r), someSpan(r), someSpan(r)
		whole, end := dialOf(v, a+b)
		first, mid := dialOf(v, a)
		second, last := dialOf(mid, b)
		// A float64 of a day in nanoseconds has so many digits left.
		slack := time.Duration(3 + float64(a+b)*1e-14)
		if d := whole - first - second; d < -slack || d > slack {
			t.Fatalf("speed %v: %v at once, %v less in two steps of %v and %v", v, whole, d, a, b)
		}
		if math.Abs(end-last) > 1e-12 {
			t.Fatalf("speed %v after %v + %v: %v at once, %v in two", v, a, b, end, last)
		}
	}
}

func TestRealTimeIsTheInverseOfTheDial(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	for range 200_000 {
		v, y := someSpeeds(r), someSpan(r)
		x := realOf(v, y)
		if x < y {
			t.Fatalf("realOf(%v, %v) = %v, less than the dial's", v, y, x)
		}
		if shown, _ := dialOf(v, x); shown < y {
			t.Fatalf("after realOf(%v, %v) = %v the dial shows only %v", v, y, x, shown)
		}
		slack := time.Duration(4 + 4/v + float64(x)*1e-14)
		if early, _ := dialOf(v, x-slack); x > slack && early >= y {
			t.Fatalf("the dial shows %v at %v before realOf(%v, %v) = %v", early, slack, v, y, x)
		}
		if more := realOf(v, y+someSpan(r)); more < x {
			t.Fatalf("realOf(%v): %v for %v, but less for more: %v", v, x, y, more)
		}
	}
}

func TestASlowedClockIsAtFullSpeedAfterItsRecovery(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 50_000 {
		v := someSpeeds(r)
		x := recovery(v)
		if _, after := dialOf(v, x+1); after != 1 {
			t.Fatalf("speed %v: %v after %v", v, after, x+1)
		}
		if _, after := dialOf(v, x/2); x > 10 && after >= 1 {
			t.Fatalf("speed %v: %v after %v already", v, after, x/2)
		}
	}
	if seven := recovery(0.5); seven < 7*time.Minute || seven > 8*time.Minute {
		t.Errorf("half the speed recovers in %v, want a bit more than 7 minutes", seven)
	}
	for _, x := range []time.Duration{0, 1, time.Hour, math.MaxInt64} {
		if y, v := dialOf(1, x); y != x || v != 1 {
			t.Errorf("dialOf(1, %v) = %v, %v", x, y, v)
		}
		if y := realOf(1, x); y != x {
			t.Errorf("realOf(1, %v) = %v", x, y)
		}
		if y := realOf(MinSpeed, x); y < x {
			t.Errorf("realOf(%v, %v) = %v", MinSpeed, x, y)
		}
	}
}
