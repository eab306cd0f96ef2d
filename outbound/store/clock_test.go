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

// The dial shows the integral of the speed.
func TestDial_IsTheIntegralOfItsSpeed(t *testing.T) {
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

// The dial runs neither faster than real time nor back.
func TestDial_NeverRunsFasterOrBack(t *testing.T) {
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
func TestDial_IgnoresHowOftenItIsRead(t *testing.T) {
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

// realOf is the inverse of dialOf, and rounds up.
func TestDial_RealTimeIsItsInverse(t *testing.T) {
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

// A slow clock has its full speed after the recovery, and not before.
func TestDial_RecoversToFullSpeed(t *testing.T) {
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

// A store whose stamps waver admits what the limit allows, and loses nothing by it.
func TestClock_WaveringStampsKeepTheLimit(t *testing.T) {
	limit := []Limit{{Capacity: 10, Rate: 500}}
	for name, stamp := range map[string]func(r *rand.Rand, at time.Duration) time.Duration{
		"jitter of 5 ms":    func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(5e6)) },
		"clocks 1 ms apart": func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(2)*1e6) },
		"clocks 1 s apart":  func(r *rand.Rand, at time.Duration) time.Duration { return at + time.Duration(r.Int64N(2)*1e9) },
	} {
		r := rand.New(rand.NewPCG(1, 2))
		var s Stored
		admitted := 0
		const all = 3 * time.Second
		for at := time.Duration(0); at < all; at += 100 * time.Microsecond {
			op := Op{Limits: limit, Action: Book, Costs: []Units{{1}}}
			admitted += len(op.Apply(&s, 1000*time.Second+stamp(r, at)).Charges)
		}
		// A clock that is a second ahead adds what leaks in a second, once.
		if most := 10 + 500*(all+time.Second).Seconds(); float64(admitted) > most || admitted < 500*int(all/time.Second) {
			t.Errorf("%s: %d went in %v", name, admitted, all)
		}
	}
}

// A step back of up to Wobble is ignored until the clock has caught up. A longer one counts.
func TestClock_SmallStepBackIsTheLatestStamp(t *testing.T) {
	limit := Limit{Capacity: 10, Rate: 1}
	for _, c := range []struct {
		back time.Duration
		// how long a call of 10 waits after one of 10 and the step, and the level 5 s after the
		// step
		wait, level float64
	}{
		{0, 10, 5},
		{time.Millisecond, 10.001, 5.001},
		{time.Second, 11, 6},
		{time.Second + 1, 10, 5},
		{time.Hour, 10, 5},
	} {
		k, at := newKey(t, limit), 10_000-c.back.Seconds()
		k.book(10_000, 0, Units{10})
		r := k.book(at, 0, Units{10})
		if r.Wait != time.Duration(c.wait*1e9) {
			t.Errorf("%v back: told to wait %v, want %vs", c.back, r.Wait, c.wait)
		}
		if r := k.do(at+5, Op{}); r.State.Level[0] < c.level-1e-6 || r.State.Level[0] > c.level+1e-6 {
			t.Errorf("%v back: level %v after 5s, want %v", c.back, r.State.Level[0], c.level)
		}
		if r := k.book(at+r.Wait.Seconds(), 0, Units{10}); len(r.Charges) != 1 {
			t.Errorf("%v back: not admitted after the %v that it was told, but after %v more", c.back, time.Duration(c.wait*1e9), r.Wait)
		}
	}
}
